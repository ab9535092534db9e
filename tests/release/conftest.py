"""Shared by the tests that run once per DeepSpeed release; each adapts to the installed release."""

import json
import os
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.version import Version

from dsfix.catalogue import registry
from dsfix.patch import Provide
from tests.processes import ended, without_dsfix

PROGRAMS = Path(__file__).parent / "programs"


def _installed():
    try:
        return Version(metadata.version("deepspeed"))
    except metadata.PackageNotFoundError:
        return None


def pytest_collection_modifyitems(items):
    if _installed() is None:
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="DeepSpeed is not installed"))


@pytest.fixture(scope="session")
def release():
    """The installed DeepSpeed."""
    results = _installed()
    assert results is not None
    return results


@pytest.fixture(scope="session")
def entries():
    """The catalogue."""
    return registry.catalogue()


@pytest.fixture(scope="session")
def import_patches(entries):
    """The ids of the patches without which old releases cannot be imported, as DSFIX_ONLY takes them."""
    return ",".join(entry.id for entry in entries.values() if all(isinstance(c, Provide) for c in entry.patch.changes))


@pytest.fixture(scope="session")
def environment(release, tmp_path_factory):
    """The environment of a process that imports DeepSpeed on a machine without a GPU."""
    env = without_dsfix(DS_ACCELERATOR="cpu", OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1")
    paths = list(filter(None, [os.environ.get("PYTHONPATH")]))
    if release <= Version("0.14.0"):  # its CPU accelerator imports these two, and uses neither here
        stubs = tmp_path_factory.mktemp("stubs")
        for name in ("intel_extension_for_pytorch", "oneccl_bindings_for_pytorch"):
            (stubs / f"{name}.py").touch()
        paths.insert(0, str(stubs))
    env["PYTHONPATH"] = os.pathsep.join(paths)
    return env


@pytest.fixture(scope="session")
def run_program(environment, tmp_path_factory):
    """Runs one of `programs/` in a fresh process; returns what it wrote as JSON, and its standard error."""

    def run(name, *arguments, **variables):
        out = tmp_path_factory.mktemp("out") / "result.json"
        command = [sys.executable, PROGRAMS / f"{name}.py", out, *arguments]
        done = ended(command, out.parent, {**environment, **variables})
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
        return json.loads(out.read_text(encoding="utf-8")), done.stderr

    return run
