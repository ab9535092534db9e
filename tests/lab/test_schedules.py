"""Streams of the emulated device under a schedule: programs with and without a missing wait."""

import json
import os
from functools import cache
from pathlib import Path

import pytest

from dsfix.lab.cuda.load import SCHEDULE
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
AHEAD = (
    *("too_early_on_another_stream", "gradient_copied_by_a_hook"),
    *("pinned_memory_read_too_early", "pinned_memory_overwritten"),
)
SCHEDULES = ("early", "late", "ahead", "random:1", "random:2")


@pytest.fixture(scope="module")
def run(emulated):
    """Runs the programs under a schedule."""
    with forked() as command:

        def run(schedule):
            variables = {"OMP_NUM_THREADS": "1", SCHEDULE: schedule, "DSFIX_SEVERITY": "import"}
            done = ended(command(PROGRAM), None, {**os.environ, **to_fork(**variables)})
            assert done.returncode == 0, done.stderr
            return json.loads(done.stdout.splitlines()[-1])

        yield run


@pytest.fixture(scope="module")
def seen(run):
    """Whether the programs compute what they have to under a schedule."""
    return cache(run)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("program", PAIRS)
def test_right_programs_compute_the_same_under_all_schedules(seen, program, schedule):
    assert seen(schedule)[f"{program} right"]


@pytest.mark.parametrize("program", PAIRS)
def test_a_missing_wait_shows_under_the_late_schedule(seen, program):
    assert not seen("late")[f"{program} wrong"]


@pytest.mark.parametrize("program", AHEAD)
def test_work_that_runs_ahead_of_the_default_stream_shows(seen, program):
    assert not seen("ahead")[f"{program} wrong"]


@pytest.mark.parametrize("program", PAIRS)
def test_a_missing_wait_does_not_show_if_work_is_synchronous(seen, program):
    assert seen("early")[f"{program} wrong"]


def test_a_seed_repeats_a_run(seen, run):
    assert run("random:1") == seen("random:1")
