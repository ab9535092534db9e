"""Settings and fixtures for all tests."""

import importlib.util
import os
import signal
import sys
import zlib
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
importlib.import_module("matrix")  # removes the checkout from sys.path again
# a shell that runs the tests in the background has SIGINT ignored, which processes started by tests would inherit
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ("tests.stand_ins",)


def pytest_addoption(parser):
    parser.addoption("--whole", action="store_true", help="what takes long, whole: contract, launchers, frameworks")
    parser.addoption("--one-in", type=int, default=1, metavar="N", help="only one test in N, others on the next Python")


def pytest_collection_modifyitems(config, items):
    def left_out(item):
        return (zlib.crc32(item.nodeid.encode()) + sys.version_info.minor) % config.getoption("--one-in")

    left = [item for item in items if left_out(item)]
    items[:] = [item for item in items if not left_out(item)]
    if left:
        config.hook.pytest_deselected(items=left)


@pytest.fixture(scope="session")
def whole(request):
    """Whether --whole was given."""
    return request.config.getoption("--whole")


@pytest.fixture(scope="session")
def has_torch():
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")


@pytest.fixture(scope="session")
def has_deepspeed(has_torch):
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed")


@pytest.fixture(scope="session", autouse=True)
def outside_the_checkout(tmp_path_factory):
    """Processes started by tests import the installed dsfix, not the checkout's directory of that name."""
    before = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("elsewhere"))
    yield
    os.chdir(before)


@pytest.fixture(scope="session")
def dsfix_in():
    """Links the installed dsfix into a directory; returns the directory of its patches, which is empty."""

    def lay(root):
        import dsfix  # not installed in the environment `package`

        patches = root / "dsfix" / "patches"
        patches.mkdir(parents=True)
        for path in Path(dsfix.__file__).parent.iterdir():
            if path.name not in ("patches", "__pycache__"):
                (patches.parent / path.name).symlink_to(path)
        (patches / "__init__.py").touch()
        return patches

    return lay
