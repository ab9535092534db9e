"""Shared by the tests with the real DeepSpeed."""

import pytest

from tests import processes


@pytest.fixture(scope="session")
def forked():
    """Makes a script and its arguments a command, on the emulated device or a GPU."""
    with processes.forked() as command:
        yield command
