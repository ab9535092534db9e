"""A case for each patch of the catalogue, on the newest release that it applies to with this Python's packages."""

import itertools

import pytest

from dsfix.catalogue import registry
from dsfix.testing.contract import checks
from dsfix.testing.contract.case import Case
from dsfix.testing.contract.machine import started
from matrix import environments
from tests.contract import choice

_ONE_IN, _ONE_PAIR_IN = 96, 48


def pytest_collection_modifyitems(config, items):
    """Without --whole: each check on one patch in 96, different ones per check, as engine bugs show on any patch.

    All patches at once: on one release. Pairs: one in 48, only together; `matrix edges` runs each alone.
    """
    if config.getoption("whole"):
        return
    kept, left = [], []
    ids, releases, pairs = list(registry.catalogue()), itertools.count(), itertools.count()
    for item in items:
        chosen = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        place, one_in = 0, _ONE_IN
        if {"check", "patch_id"} <= chosen.keys():
            place = ids.index(chosen["patch_id"]) + checks.CHECKS.index(chosen["check"])
        elif {"release", "entries"} <= chosen.keys():
            place = next(releases)
        elif "pair" in chosen:
            place, one_in = next(pairs) if chosen["subset"] == "both" else 1, _ONE_PAIR_IN
        (left if place % one_in else kept).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left)


@pytest.fixture(scope="session")
def machine(tmp_path_factory):
    with started(tmp_path_factory.mktemp("machine")) as each:
        yield each


@pytest.fixture(scope="session")
def case_of(machine):
    """The case of a patch on a release."""
    catalogue = registry.catalogue()

    def make(entry, release):
        return Case(
            entry=entry,
            release=release,
            root=environments.installed(release),
            catalogue=catalogue,
            applying=choice.applying(release, catalogue),
            front=machine.front(release),
            machine=machine,
        )

    return make
