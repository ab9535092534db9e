"""A case for each patch of the catalogue: the newest release that it is for, beside what this Python has."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

import pytest

import environments
import table
from dsfix import registry
from dsfix.registry import Entry

sys.path.insert(0, str(Path(__file__).parent))  # `harness`, for the tests

from harness import checks, choice
from harness.case import Case, Machine
from harness.client import Server

# what DeepSpeed imports of others: imported once
_PRELOADED = (
    *("torch", "numpy", "pydantic", "hjson", "psutil", "tqdm", "cpuinfo", "setuptools", "sympy", "einops", "msgpack"),
    *("torch._dynamo", "torch.utils.cpp_extension"),
)
_AGENT = "torch.distributed.elastic.agent.server.api"  # has targets of patches
_STUBS = ("intel_extension_for_pytorch", "oneccl_bindings_for_pytorch")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--whole", action="store_true", help="every check of every patch; without it each patch stands a sixth of them"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Each check on every sixth patch, the next check on others: what is wrong with the engine shows on any of them."""
    if config.getoption("whole"):
        return
    kept, left = [], []
    ids = list(registry.catalogue())
    for item in items:
        chosen = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        place = (
            ids.index(chosen["patch_id"]) + checks.CHECKS.index(chosen["check"])
            if {"check", "patch_id"} <= chosen.keys()
            else 0
        )
        (left if place % 6 else kept).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left)


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """Of every process: a machine without a GPU, nothing of dsfix's settings, no bytecode beside the release."""
    mine = ("DSFIX_", "_DSFIX_", "RANK", "LOCAL_RANK", "SLURM", "OMPI", "PMI", "COV_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(mine)}
    return {**kept, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture(scope="session")
def cold(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that has imported nothing."""
    server = Server(environment, tmp_path_factory.mktemp("cold"))
    yield server
    server.close()


@pytest.fixture(scope="session")
def machine(cold: Server, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    warm = Server(environment, tmp_path_factory.mktemp("warm"), (*_PRELOADED, _AGENT))
    without_agent = Server(environment, tmp_path_factory.mktemp("without_agent"), _PRELOADED)
    yield Machine((warm, without_agent, cold), tmp_path_factory.mktemp("copies"))
    warm.close()
    without_agent.close()


@pytest.fixture(scope="session")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two modules that the CPU accelerator of releases up to 0.14.0 imports and does not use here."""
    directory = tmp_path_factory.mktemp("stubs")
    for name in _STUBS:
        (directory / f"{name}.py").touch()
    return directory


@pytest.fixture(scope="session")
def case_of(machine: Machine, stubs: Path) -> Callable[[Entry, str], Case]:
    """The case of a patch on a release."""
    catalogue, releases = registry.catalogue(), table.load()
    known = {each.deepspeed for each in releases.releases}

    def make(entry: Entry, release: str) -> Case:
        old = releases.release(release).version <= releases.release("0.14.0").version
        return Case(
            entry=entry,
            release=release,
            root=environments.installed(release),
            fixing=environments.installed(entry.patch.fixed_in) if entry.patch.fixed_in in known else None,
            catalogue=catalogue,
            beside=choice.beside(release, catalogue),
            front=(stubs,) if old else (),
            machine=machine,
        )

    return make
