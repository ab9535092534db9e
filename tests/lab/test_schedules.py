"""Streams of the emulated device under a schedule, and its race detector: programs with one missing wait, and right."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from dsfix.lab.cuda.schedule import RACES, SCHEDULE, Schedule, of_environment, parse
from dsfix.lab.distributions import torch_build
from dsfix.lab.errors import LabUnavailable
from dsfix.lab.ranks import launch

pytestmark = pytest.mark.usefixtures("emulated")
PROGRAMS = Path(__file__).parent / "programs"
PAIRS = (
    "result_of_another_stream",
    "overwritten_while_it_is_read",
    "too_early_on_another_stream",
    "event_before_the_work",
    "freed_while_it_is_read",
    "slices_of_one_bucket",
    "gradient_copied_by_a_hook",
    "collective_not_waited_for",
    "input_of_a_collective_overwritten",
    "pinned_memory_read_too_early",
    "pinned_memory_overwritten",
)
BY_THE_HOST = {"pinned_memory_read_too_early", "pinned_memory_overwritten"}
AHEAD = {"too_early_on_another_stream", "gradient_copied_by_a_hook", *BY_THE_HOST}
SCHEDULES = ("early", "late", "ahead", "random:1", "random:2")


@cache
def seen(schedule, races="1"):
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / "streams.py")],
        env={**os.environ, "OMP_NUM_THREADS": "1", SCHEDULE: schedule, RACES: races, "DSFIX_SEVERITY": "import"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("program", PAIRS)
def test_right_programs_compute_the_same_under_all_schedules_without_a_race(program, schedule):
    assert seen(schedule)[f"{program} right"] == {"ok": True, "races": []}


@pytest.mark.parametrize("program", PAIRS)
def test_a_missing_wait_shows_under_the_late_schedule(program):
    assert not seen("late")[f"{program} wrong"]["ok"]


@pytest.mark.parametrize("program", sorted(AHEAD))
def test_work_that_runs_ahead_of_the_default_stream_shows(program):
    assert not seen("ahead")[f"{program} wrong"]["ok"]


@pytest.mark.parametrize("program", PAIRS)
def test_a_missing_wait_is_not_seen_where_all_is_done_at_once(program):
    assert seen("early")[f"{program} wrong"]["ok"]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("program", sorted(set(PAIRS) - BY_THE_HOST))
def test_races_are_found_whatever_the_schedule(program, schedule):
    assert seen(schedule)[f"{program} wrong"]["races"]


def test_a_race_names_both_uses_with_their_lines_and_streams():
    [race] = seen("early")["result_of_another_stream wrong"]["races"]
    before, after = race.split("\n    and ")
    # a build of torch for GPUs has a kernel for `add_` itself
    written = "add(out" if torch_build().gpu is None else "add_(self"
    assert before.startswith(f"race: write by aten::{written}: Float[4]) on stream 1\n")
    assert after.startswith("read by aten::sum(self: Float[4]) on the default stream\n")
    assert "programs/streams.py" in before
    assert "in result_of_another_stream" in after
    assert "wait_stream" in after


def test_a_race_in_a_backward_pass_names_its_node():
    races = seen("early")["gradient_copied_by_a_hook wrong"]["races"]
    assert any("AccumulateGrad" in race for race in races)


def test_a_seed_repeats_a_run():
    again = seen.__wrapped__("random:1")
    assert again == seen("random:1")


@pytest.mark.parametrize("schedule", ["late", "ahead", "random:3"])
def test_ranks_that_need_collectives_in_another_order_do_not_wait_for_each_other(schedule):
    environment = {**os.environ, SCHEDULE: schedule, RACES: "", "DSFIX_SEVERITY": "import"}
    ranks = launch([sys.executable, str(PROGRAMS / "two_groups.py")], ranks=2, timeout=200, env=environment)
    assert [(rank.returncode, rank.stdout.splitlines()[-1:]) for rank in ranks] == [(0, ["48.0"])] * 2, ranks[0].stderr


def test_a_result_is_what_this_call_asks_for_whatever_an_earlier_one_did(answer):
    """The gradients of inputs alone, then those of weights alone; a sum in float32, then one in float64."""
    source = """
from dsfix.lab.cuda import load
load()
import json, torch
layer, x = torch.nn.LayerNorm(4).cuda().requires_grad_(False), torch.ones(4, 4, device="cuda", requires_grad=True)
layer(x).sum().backward()
layer.requires_grad_(True)
layer(x.detach()).sum().backward()
wide = x.detach().cumsum(0).sum() + x.detach().cumsum(0, dtype=torch.float64).sum()
print(json.dumps([x.grad.sum().item(), layer.bias.grad.tolist(), str(wide.dtype), wide.item()]))
"""
    assert answer(source, **{SCHEDULE: "late", RACES: ""}) == [0.0, [4.0] * 4, "torch.float64", 80.0]


def test_batch_norm_in_evaluation_saves_the_same_each_time(answer):
    """Else a checkpoint that recomputes it fails."""
    source = """
from dsfix.lab.cuda import load
load()
import json, torch
from torch.utils.checkpoint import checkpoint
norm, x = torch.nn.BatchNorm1d(2).cuda().eval(), torch.ones(3, 2, device="cuda", requires_grad=True)
result = checkpoint(norm, x, use_reentrant=False).sum()
result.backward()
print(json.dumps([result.item(), x.grad.sum().item()]))
"""
    assert answer(source, **{SCHEDULE: "late", RACES: ""}) == pytest.approx([6, 6], rel=1e-4)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("late", Schedule("late")), ("early", Schedule("early")), ("random:7", Schedule("random", 7))],
)
def test_schedules_have_names(text, expected):
    assert parse(text) == expected


@pytest.mark.parametrize("text", ["", "Late", "late:1", "random", "random:", "random:-1", "random:x", "sooner"])
def test_other_names_are_refused(text):
    with pytest.raises(ValueError, match="early, late, ahead or random:SEED"):
        parse(text)


def test_the_environment_asks_for_a_schedule():
    assert of_environment({}) is None
    assert of_environment({SCHEDULE: "late"}) == Schedule("late")
    assert of_environment({RACES: "1"}) == Schedule("early", races=True)
    with pytest.raises(LabUnavailable, match=SCHEDULE):
        of_environment({SCHEDULE: "sooner"})
