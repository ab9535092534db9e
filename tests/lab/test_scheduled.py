"""Behaviour under a schedule, in addition to the programs of test_schedules.py, and the names of schedules."""

import os
from pathlib import Path

import pytest

from dsfix.lab.cuda.load import SCHEDULE, Schedule, of_environment, parse
from dsfix.lab.distributions import LabUnavailable
from dsfix.lab.ranks import launch
from tests.processes import forked, to_fork

pytestmark = pytest.mark.usefixtures("emulated")
PROGRAM = Path(__file__).parent / "programs" / "two_groups.py"


@pytest.fixture(scope="module")
def command(emulated):
    with forked() as command:
        yield command


@pytest.mark.parametrize("schedule", ["late", "ahead", "random:3"])
def test_ranks_that_need_collectives_in_a_different_order_do_not_wait_for_each_other(schedule, command):
    environment = {**os.environ, **to_fork(**{SCHEDULE: schedule, "DSFIX_SEVERITY": "import"})}
    ranks = launch(command(PROGRAM), ranks=2, timeout=200, env=environment)
    assert [(rank.returncode, rank.stdout.splitlines()[-1:]) for rank in ranks] == [(0, ["48.0"])] * 2, ranks[0].stderr


def test_a_result_does_not_depend_on_an_earlier_call(answer):
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
    assert answer(source, **{SCHEDULE: "late"}) == [0.0, [4.0] * 4, "torch.float64", 80.0]


def test_batch_norm_in_evaluation_saves_the_same_each_time(answer):
    """Otherwise a checkpoint that recomputes it fails."""
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
    assert answer(source, **{SCHEDULE: "late"}) == pytest.approx([6, 6], rel=1e-4)


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


def test_the_environment_sets_a_schedule():
    assert of_environment({}) is None
    assert of_environment({SCHEDULE: "late"}) == Schedule("late")
    with pytest.raises(LabUnavailable, match=SCHEDULE):
        of_environment({SCHEDULE: "sooner"})
