"""Which objects see the empty groups of an optimizer, and what they see; without torch, on each Python."""

import copy
import pickle
from types import ModuleType

import pytest

from dsfix.catalogue.registry import catalogue

show_all_groups = catalogue()["empty_group_scheduler"].module.show_all_groups


class Optimizer:
    def __init__(self, *sizes):
        self.param_groups = [{"params": [0] * size, "lr": float(index)} for index, size in enumerate(sizes)]

    def load(self, groups):
        self.param_groups = groups


class Scheduler:
    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.base_lrs = [group["lr"] for group in optimizer.param_groups]

    def step(self): ...


class WithLastRates:
    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self): ...

    def get_last_lr(self):
        return [group["lr"] for group in self.optimizer.param_groups]


class Slots:
    __slots__ = ("__weakref__", "base_lrs", "optimizer")

    def __init__(self, optimizer):
        self.optimizer, self.base_lrs = optimizer, [0.0]


class Holder:
    """A wrapper of the optimizer."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self): ...


def drop(optimizer, scheduler=None):
    """What the engine does with the patch."""
    show_all_groups(optimizer, scheduler)
    optimizer.param_groups[:] = [group for group in optimizer.param_groups if group["params"]]


def rates(scheduler):
    return [group["lr"] for group in scheduler.optimizer.param_groups]


@pytest.mark.parametrize("looked_at", [False, True])
@pytest.mark.parametrize("kind", [Scheduler, WithLastRates])
def test_a_scheduler_that_is_not_passed_still_sees_all_groups(kind, looked_at):
    optimizer = Optimizer(0, 2, 0, 1, 0)
    schedulers = [kind(optimizer) for _ in range(3)]
    if looked_at:  # after that, some Pythons keep the attributes in a dictionary
        assert all(vars(scheduler) for scheduler in schedulers)
    drop(optimizer)
    assert [group["lr"] for group in optimizer.param_groups] == [1.0, 3.0]
    for scheduler in schedulers:
        assert rates(scheduler) == [0.0, 1.0, 2.0, 3.0, 4.0]
    for group in schedulers[0].optimizer.param_groups:
        group["lr"] += 0.5
    assert [group["lr"] for group in optimizer.param_groups] == [1.5, 3.5]
    assert rates(schedulers[1]) == [0.5, 1.5, 2.5, 3.5, 4.5]


def test_a_scheduler_that_is_passed_needs_no_mark():
    optimizer = Optimizer(1, 0)
    scheduler = Holder(optimizer)
    drop(optimizer, scheduler)
    assert rates(scheduler) == [0.0, 1.0]


def test_other_holders_of_the_optimizer_keep_it():
    optimizer, other = Optimizer(1, 0), Optimizer(1, 0)
    script = ModuleType("script")
    script.optimizer, script.base_lrs, script.step = optimizer, [0.1], 7
    holders = [Holder(optimizer), Slots(optimizer), script]
    mine, elsewhere, no_object = {"optimizer": optimizer, "base_lrs": []}, Scheduler(other), lambda: optimizer
    drop(optimizer, no_object)
    assert all(holder.optimizer is optimizer for holder in holders)
    assert mine["optimizer"] is optimizer
    assert elsewhere.optimizer is other


def test_without_an_empty_group_nothing_changes():
    optimizer = Optimizer(1, 2)
    scheduler = Scheduler(optimizer)
    drop(optimizer, scheduler)
    assert scheduler.optimizer is optimizer


def test_the_stand_in_otherwise_behaves_like_the_optimizer():
    optimizer = Optimizer(0, 1)
    scheduler = Scheduler(optimizer)
    drop(optimizer)
    shown = scheduler.optimizer
    assert isinstance(shown, Optimizer)
    assert shown == optimizer
    assert optimizer == shown
    assert shown != Optimizer(0, 1)
    assert hash(shown) == hash(optimizer)
    assert repr(shown) == repr(optimizer)
    shown.load([{"params": [0], "lr": 7.0}])  # as torch's load_state_dict does: other groups
    assert [group["lr"] for group in optimizer.param_groups] == [7.0]
    assert rates(scheduler) == [0.0, 7.0]
    shown.stepped = True
    assert optimizer.stepped
    assert not hasattr(shown, "unheard_of")


def test_a_scheduler_can_still_be_copied():
    optimizer = Optimizer(0, 1)
    scheduler = Scheduler(optimizer)
    drop(optimizer)
    other = copy.deepcopy(scheduler)
    assert rates(other) == [0.0, 1.0]
    assert not any(mine is its for mine, its in zip(scheduler.optimizer.param_groups, other.optimizer.param_groups))


def test_a_pickled_scheduler_has_the_optimizer_itself_until_the_next_engine():
    optimizer = Optimizer(0, 1)
    scheduler = Scheduler(optimizer)
    drop(optimizer)
    other = pickle.loads(pickle.dumps(scheduler))
    assert type(other.optimizer) is Optimizer
    assert rates(other) == [1.0]
    drop(other.optimizer)
    assert rates(other) == [0.0, 1.0]
