"""A release's environment is found by its torch and Python, and has what the release needs."""

import importlib.metadata
import platform
import sys

import pytest

from dsfix.lab.distributions import TorchBuild
from matrix import environments, table


def test_a_missing_dependency_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("DSFIX_CACHE", str(tmp_path))
    monkeypatch.setattr(environments, "torch_build", lambda: TorchBuild("2.13.0+cpu", tmp_path, None))
    information = (
        tmp_path / f"releases/torch2.13.0+cpu-{sys.implementation.cache_tag}/deepspeed-1.2.0/deepspeed-1.2.0.dist-info"
    )
    information.mkdir(parents=True)
    requires = "Requires-Dist: pytest\nRequires-Dist: not-there>=1\nRequires-Dist: optional; extra == 'x'\n"
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: deepspeed\nVersion: 1.2.0\n{requires}")
    with pytest.raises(environments.Unavailable, match=r"deepspeed 1\.2\.0 needs not-there, not installed"):
        environments.installed("1.2.0")


def test_environment_is_found_by_torch_and_python(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.13.0+cpu")
    python = ".".join(platform.python_version_tuple()[:2])
    known = [
        table.Environment(f"torch-{torch}-{minor}", minor, {"torch": torch})
        for torch in ("2.3.1", "2.13.0")
        for minor in ("3.99", python)
    ]
    releases = table.Table({each.name: each for each in known}, ())
    assert environments.current(releases) is known[-1]
    with pytest.raises(environments.Unavailable, match=r"not an environment of the table, which has Python 3\.99 with"):
        environments.current(table.Table({each.name: each for each in known[:-1]}, ()))
