"""For all tests."""

import os

import pytest


@pytest.fixture(scope="session", autouse=True)
def outside_the_checkout(tmp_path_factory):
    """Processes that tests start import the dsfix that is installed, and not the checkout's directory of that name."""
    before = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("elsewhere"))
    yield
    os.chdir(before)
