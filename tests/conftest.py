"""For all tests."""

import importlib
import os
import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
importlib.import_module("matrix")  # takes the checkout from sys.path again
# processes that tests start inherit that SIGINT is ignored, as it is where a shell runs the tests in the background
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def outside_the_checkout(tmp_path_factory):
    """Processes that tests start import the dsfix that is installed, and not the checkout's directory of that name."""
    before = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("elsewhere"))
    yield
    os.chdir(before)


@pytest.fixture(scope="session")
def dsfix_in():
    """Lays the installed dsfix into a directory, by links and without patches; returns the directory for others."""

    def lay(root):
        import dsfix  # not there where the package itself is tested

        patches = root / "dsfix" / "patches"
        patches.mkdir(parents=True)
        for path in Path(dsfix.__file__).parent.iterdir():
            if path.name not in ("patches", "__pycache__"):
                (patches.parent / path.name).symlink_to(path)
        (patches / "__init__.py").touch()
        return patches

    return lay
