from __future__ import annotations

import importlib.util

import pytest


@pytest.fixture(scope="session")
def has_deepspeed() -> None:
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed")


@pytest.fixture(scope="session", autouse=True)
def has_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
