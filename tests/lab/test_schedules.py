"""Streams of the emulated device under a schedule, and its race detector: programs with and without a missing wait."""

import json
import os
from functools import cache
from pathlib import Path

import pytest

from dsfix.lab.cuda.schedule import RACES, SCHEDULE
from dsfix.lab.distributions import torch_build
from tests.processes import ended, forked, to_fork

PROGRAM = Path(__file__).parent / "programs" / "streams.py"
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


@pytest.fixture(scope="module")
def run(emulated):
    """Runs the programs under a schedule, with the race detector."""
    with forked() as command:

        def run(schedule):
            variables = {"OMP_NUM_THREADS": "1", SCHEDULE: schedule, RACES: "1", "DSFIX_SEVERITY": "import"}
            done = ended(command(PROGRAM), None, {**os.environ, **to_fork(**variables)})
            assert done.returncode == 0, done.stderr
            return json.loads(done.stdout.splitlines()[-1])

        yield run


@pytest.fixture(scope="module")
def seen(run):
    """What the programs compute under a schedule, and their races."""
    return cache(run)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("program", PAIRS)
def test_right_programs_compute_the_same_under_all_schedules_without_a_race(seen, program, schedule):
    assert seen(schedule)[f"{program} right"] == {"ok": True, "races": []}


@pytest.mark.parametrize("program", PAIRS)
def test_a_missing_wait_shows_under_the_late_schedule(seen, program):
    assert not seen("late")[f"{program} wrong"]["ok"]


@pytest.mark.parametrize("program", sorted(AHEAD))
def test_work_that_runs_ahead_of_the_default_stream_shows(seen, program):
    assert not seen("ahead")[f"{program} wrong"]["ok"]


@pytest.mark.parametrize("program", PAIRS)
def test_a_missing_wait_does_not_show_if_work_is_synchronous(seen, program):
    assert seen("early")[f"{program} wrong"]["ok"]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("program", sorted(set(PAIRS) - BY_THE_HOST))
def test_races_are_found_whatever_the_schedule(seen, program, schedule):
    assert seen(schedule)[f"{program} wrong"]["races"]


def test_a_race_names_both_uses_with_their_lines_and_streams(seen):
    [race] = seen("early")["result_of_another_stream wrong"]["races"]
    before, after = race.split("\n    and ")
    # a build of torch for GPUs has a kernel for `add_` itself
    written = "add(out" if torch_build().gpu is None else "add_(self"
    assert before.startswith(f"race: write by aten::{written}: Float[4]) on stream 1\n")
    assert after.startswith("read by aten::sum(self: Float[4]) on the default stream\n")
    assert "programs/streams.py" in before
    assert "in result_of_another_stream" in after
    assert "wait_stream" in after


def test_a_race_in_a_backward_pass_names_its_node(seen):
    races = seen("early")["gradient_copied_by_a_hook wrong"]["races"]
    assert any("AccumulateGrad" in race for race in races)


def test_a_seed_repeats_a_run(seen, run):
    assert run("random:1") == seen("random:1")
