"""What is reported about an error that no signature matches: where it was raised."""

import pytest

from dsfix.explain.recognise import LogReading

SITE = "/opt/env/lib/python3.11/site-packages"


@pytest.fixture
def where(tmp_path):
    def read(*frames, error="RuntimeError: an error of the test"):
        lines = [f'  File "{path}", line 7, in {name}\n    x = f(x)' for path, name in frames]
        log = tmp_path / "log"
        log.write_text("\n".join(["Traceback (most recent call last):", *lines, error, ""]))
        reading = LogReading()
        reading.read(str(log))
        (results,) = reading.unknown.values()
        return results.where

    return read


def test_raised_in_deepspeed(where):
    said = where(("/home/me/train.py", "main"), (f"{SITE}/deepspeed/runtime/zero/stage3.py", "step"))
    assert said == "deepspeed/runtime/zero/stage3.py, in step."


def test_called_from_deepspeed(where):
    said = where((f"{SITE}/deepspeed/module_inject/auto_tp.py", "split"), (f"{SITE}/torch/functional.py", "split"))
    assert said == "torch/functional.py, in split, called from deepspeed/module_inject/auto_tp.py, in split."


def test_without_deepspeed(where):
    said = where(("/home/me/train.py", "main"), (f"{SITE}/transformers/trainer.py", "train"))
    assert said.startswith("transformers/trainer.py, in train. DeepSpeed is not in the traceback")


def test_a_directory_of_the_users_is_not_deepspeed(where):
    said = where(("/home/me/deepspeed-experiments/deepspeed_train.py", "main"))
    assert said.startswith("deepspeed_train.py, in main. DeepSpeed is not in the traceback")


def test_a_clone_on_windows(where):
    said = where((r"D:\src\DeepSpeed\deepspeed\runtime\pipe\engine.py", "train_batch"))
    assert said == "deepspeed/runtime/pipe/engine.py, in train_batch."


def test_no_frames(where):
    assert where() == ""
