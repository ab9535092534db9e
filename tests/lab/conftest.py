"""Everything that imports torch runs in separate processes, because the emulated device must be loaded first."""

import json
import os
import sys

import pytest

from tests.processes import ended


@pytest.fixture(scope="session")
def python():
    """Runs Python source in a fresh process that can import dsfix."""

    def run(source, *arguments, **variables):
        env = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
        return ended([sys.executable, "-c", source, *arguments], None, env, timeout=300)

    return run


@pytest.fixture(scope="session")
def answer(python):
    """Runs Python source in a fresh process and parses the JSON in its last line."""
    # during finalization, a backward thread of torch that wants the GIL aborts the process, once in a few hundred runs
    end = "\nimport atexit, os, sys\natexit._run_exitfuncs()\nsys.stdout.flush()\nos._exit(0)\n"

    def run(source, *arguments, **variables):
        done = python(source + end, *arguments, **variables)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture(scope="session")
def emulated():
    """Builds the emulated device; skips if that is not possible."""
    from dsfix.lab.cuda.compiling import library
    from dsfix.lab.distributions import LabUnavailable

    try:
        library()
    except LabUnavailable as error:
        pytest.skip(str(error))
