"""What is said of an error that no signature matches: where it was raised, and which part of DeepSpeed that is."""

import pytest

from dsfix.explain.recognise import Reading

SITE = "/opt/env/lib/python3.11/site-packages"


@pytest.fixture
def where(tmp_path):
    def read(*frames, error="RuntimeError: an error of the test"):
        lines = [f'  File "{path}", line 7, in {name}\n    x = f(x)' for path, name in frames]
        log = tmp_path / "log"
        log.write_text("\n".join(["Traceback (most recent call last):", *lines, error, ""]))
        reading = Reading()
        reading.read(str(log))
        (found,) = reading.unknown.values()
        return found.where

    return read


def test_raised_in_deepspeed(where):
    said = where(("/home/me/train.py", "main"), (f"{SITE}/deepspeed/runtime/zero/stage3.py", "step"))
    assert said.startswith("deepspeed/runtime/zero/stage3.py, in step: ZeRO-3.")


def test_called_from_deepspeed(where):
    said = where((f"{SITE}/deepspeed/module_inject/auto_tp.py", "split"), (f"{SITE}/torch/functional.py", "split"))
    assert said.startswith("torch/functional.py, in split, called from deepspeed/module_inject/auto_tp.py, in split: ")


def test_without_deepspeed(where):
    said = where(("/home/me/train.py", "main"), (f"{SITE}/transformers/trainer.py", "train"))
    assert said.startswith("transformers/trainer.py, in train. DeepSpeed is not in the traceback")


def test_a_script_is_shown_without_its_directory(where):
    assert "/home" not in where(("/home/me/deepspeed_train.py", "main"))


def test_a_directory_of_the_users_is_not_deepspeed(where):
    assert "not in the traceback" in where(("/home/me/deepspeed-experiments/train.py", "main"))


def test_a_clone_on_windows(where):
    said = where((r"D:\src\DeepSpeed\deepspeed\runtime\pipe\engine.py", "train_batch"))
    assert said.startswith("deepspeed/runtime/pipe/engine.py, in train_batch: the pipeline engine.")


@pytest.mark.parametrize("name", ["_load_checkpoint", "save_16bit_model", "load_module_state_dict"])
def test_checkpoints_of_the_engine(where, name):
    assert where((f"{SITE}/deepspeed/runtime/engine.py", name)).endswith("a checkpoint is written or read.")


def test_a_part_without_a_description(where):
    assert where((f"{SITE}/deepspeed/utils/nvtx.py", "f")) == "deepspeed/utils/nvtx.py, in f."


def test_no_frames(where):
    assert where() == ""
