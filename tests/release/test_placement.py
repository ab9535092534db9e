"""The placement report after the real deepspeed.initialize, on the emulated device or a GPU."""

import re
import sys
from pathlib import Path

import pytest

from dsfix.lab import launch

PROGRAMS = Path(__file__).parent / "programs"
# tensors that zero.Init does not place, by their creator; the adapter was created outside zero.Init
LEFT_BEHIND = [
    *("rand", "hann_window", "linspace", "logspace", "from_numpy", "as_tensor", "load", "told"),
    *(f"adapter.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")),
]
BUFFERS = [[f"talker.{name}", "buffer", "cpu"] for name in LEFT_BEHIND]
GAIN = ["talker.gain", "attribute", "cpu"]


@pytest.fixture(scope="module")
def scenes(run_program):
    """Scene -> what it found and what dsfix logged meanwhile, each message a list of lines."""
    results, errors = run_program("placement")
    if "cannot tell" in results:
        pytest.skip(results["cannot tell"])
    _, *parts = errors.split("scene ")
    logs = {part.splitlines()[0]: _messages(part) for part in parts}
    return {name: (scene, logs[name]) for name, scene in results.items()}


def _messages(errors):
    messages = []
    inside = False
    for line in errors.splitlines():
        if line.startswith("[dsfix] ") and not re.search(r"\d applied\b", line):  # of the patches
            messages.append([line])
            inside = True
        elif inside and line.startswith("  "):
            messages[-1].append(line)
        else:
            inside = False
    return messages


def test_correct_models_cause_no_warning(scenes):
    results, messages = scenes["normal"]
    assert len(results) == 24
    assert {name: report for name, report in results.items() if report != [["cuda:0"]] * 2} == {}
    assert [message for message in messages if "took effect" not in message[0]] == []


def test_tensors_that_zero_init_misses_are_one_warning(scenes):
    results, [warning] = scenes["talker"]
    assert results["before"] == [path for path, *_ in (*BUFFERS, GAIN)]
    assert results["report"] == [*BUFFERS, GAIN]
    assert "cuda:0 and cpu" in results["forward"]
    assert warning[0] == "[dsfix] WARNING: 12 tensors are not on the expected device (cuda:0):"
    assert "  talker.linspace: buffer [4] float32 on cpu" in warning
    assert "ENABLE_AUDIO_OUTPUT=0" in warning[-1]


def test_move_fixes_it_and_says_what_it_moved(scenes):
    results, [moved, warning] = scenes["talker, move"]
    assert results["report"] == [GAIN]
    assert results["difference"] < 1e-6
    assert moved[0].startswith(f"[dsfix] INFO: moved {len(BUFFERS)} buffers to cuda:0: talker.rand (from cpu), ")
    assert warning[0] == "[dsfix] WARNING: 1 tensor is not on the expected device (cuda:0):"


def test_error_stops_the_job(scenes):
    results, messages = scenes["talker, error"]
    expected = "PlacementError: 12 tensors are not on the expected device (cuda:0):\n  talker.rand: "
    assert results["stopped"].startswith(expected)
    assert results["stopped"].endswith("DSFIX_PLACEMENT=warn lets the job continue")
    assert messages == []


def test_error_does_not_stop_for_tensors_that_forward_may_move(scenes):
    report, [warning] = scenes["attribute, error"]
    assert report == [["table[0]", "attribute", "cpu"]]
    assert "  table[0]: attribute [2] float32 on cpu" in warning


def test_off_logs_nothing(scenes):
    results, messages = scenes["talker, off"]
    assert results["report"] == [*BUFFERS, GAIN]
    assert messages == []


LATE, LEFT = "attached, replac", "the engine does "
UNKNOWN, NOT_MOVED = "no ds_id: attach", "it was never mov"
WEIGHT, SCALE = ["late.weight", "parameter", [2, 2]], ["late.scale", "buffer", [2]]
SMALL = [[f"1.{name}", "parameter", [2], "cpu", NOT_MOVED] for name in ("weight", "bias")]
CASES = {
    "late on the CPU, stage 3": ["cuda:0", [*WEIGHT, "cpu", UNKNOWN], [*SCALE, "cpu", LATE]],
    "late on the device, stage 3": ["cuda:0", [*WEIGHT, "cuda:0", UNKNOWN]],
    "late on the CPU, stage 1": ["cuda:0", [*WEIGHT, "cpu", LATE], [*SCALE, "cpu", LATE]],
    "late on the device, stage 1": ["cuda:0"],
    "a late parameter of a module that ZeRO knows": ["cuda:0", ["0.extra", "parameter", [2], "cpu", UNKNOWN]],
    "in a forward pass": [0, 0, 0],
    "moved by hand, one of them offloaded": ["cuda:0", ["0.bias", "parameter", [2], "cpu", LATE]],
    "moved by hand, stage 3": ["cuda:0", ["running_mean", "buffer", [2], "cpu", LEFT]],
    "dont_change_device": [""],
    "a model on the CPU": ["cpu"],
    "half of a model": ["cuda:0", *SMALL],
    "half of a model, expected on the CPU": ["cpu", ["0.weight", "parameter", [8], "cuda:0", NOT_MOVED]],
    "expected on the device without its number": ["cuda:0", *SMALL],
    "half of it on meta": ["cuda:0"],
    "scripted": ["cuda:0", *SMALL],
    "nothing": [""],
}


@pytest.mark.parametrize("case", CASES)
def test_case(scenes, case):
    assert scenes["cases"][0][case] == CASES[case]


def test_two_ranks_log_everything_once(environment):
    command = [sys.executable, str(PROGRAMS / "placement.py"), "ranks"]
    first, second = launch(command, ranks=2, timeout=240, env=environment)
    if "CannotTell" in first.stderr:
        pytest.skip(first.stderr.splitlines()[-1])
    assert [first.returncode, second.returncode] == [0, 0], first.stderr + second.stderr
    named = [re.findall(r"^  ([\w.]+): ", rank.stderr, re.M) for rank in (first, second)]
    # on both; placed on cuda:0 by number, hence misplaced on rank 1; one on each stage of a pipeline
    assert named == [["on_cpu", "0.plain"], ["by_number", "1.plain"]]
    assert _messages(first.stderr)[1] == ["[dsfix] INFO: moved 1 buffer to cuda:0: on_cpu (from cpu)"]
    assert _messages(second.stderr)[1] == ["[dsfix] WARNING: rank 1: moved 1 buffer to cuda:1: by_number (from cuda:0)"]
    assert all(message[0].startswith("[dsfix] WARNING: rank 1: ") for message in _messages(second.stderr))
