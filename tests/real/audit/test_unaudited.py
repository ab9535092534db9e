"""The outcome of a training that cannot be audited; the observer does not change a training."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.processes import ended

PROGRAM = Path(__file__).parent / "programs" / "unobserved.py"
pytestmark = pytest.mark.usefixtures("has_deepspeed")


def test_an_exception_of_deepspeed_is_a_difference(plan, tried):
    verdict = tried(plan(2, config={"train_batch_size": 7}))
    [difference] = verdict.differences
    assert difference.what == "error"
    assert "train_batch" in difference.detail


def test_a_timeout_is_failed(plan, tried):
    assert tried(plan(2), timeout=0.1).failed == "timed out after 0.1 s"


@pytest.mark.parametrize("stage", [2, 3])
def test_observing_changes_nothing(plan, stage):
    audited = plan(stage, "bf16", steps=3, device="cuda")
    done = ended([sys.executable, PROGRAM, audited.dump()], None, {**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-6000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"same": True, "moved": True}
