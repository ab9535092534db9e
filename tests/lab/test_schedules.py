"""Streams of the emulated device under a schedule: programs with and without a missing wait."""

import json
import os
from functools import cache
from pathlib import Path

import pytest

from dsfix.lab.cuda.load import SCHEDULE
from tests.processes import ended, forked, to_fork

PROGRAM = Path(__file__).parent / "programs" / "streams.py"
AHEAD = (
    *("too_early_on_another_stream", "gradient_copied_by_a_hook"),
    *("pinned_memory_read_too_early", "pinned_memory_overwritten"),
)
SCHEDULES = ("early", "late", "ahead", "random:1", "random:2")


@pytest.fixture(scope="module")
def run(emulated):
    """Runs the programs under a schedule: whether the right ones and the wrong ones compute what they have to."""
    with forked() as command:

        def run(schedule):
            variables = {"OMP_NUM_THREADS": "1", SCHEDULE: schedule, "DSFIX_SEVERITY": "import"}
            done = ended(command(PROGRAM), None, {**os.environ, **to_fork(**variables)})
            assert done.returncode == 0, done.stderr
            found = json.loads(done.stdout.splitlines()[-1]).items()
            return [{name: right for name, right in found if name.endswith(kind)} for kind in ("right", "wrong")]

        yield run


@pytest.fixture(scope="module")
def seen(run):
    return cache(run)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_right_programs_compute_the_same_under_all_schedules(seen, schedule):
    right, _ = seen(schedule)
    assert right == dict.fromkeys(right, True)


def test_a_missing_wait_shows_under_the_late_schedule(seen):
    _, wrong = seen("late")
    assert wrong == dict.fromkeys(wrong, False)


def test_work_that_runs_ahead_of_the_default_stream_shows(seen):
    _, wrong = seen("ahead")
    assert [program for program in AHEAD if wrong[f"{program} wrong"]] == []


def test_a_missing_wait_does_not_show_if_work_is_synchronous(seen):
    _, wrong = seen("early")
    assert wrong == dict.fromkeys(wrong, True)


def test_a_seed_repeats_a_run(seen, run):
    assert run("random:1") == seen("random:1")
