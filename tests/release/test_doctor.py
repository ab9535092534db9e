"""`python -m dsfix doctor` with the real release: it reports what an import reports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A TORCH_EXTENSIONS_DIR in which a build of cpu_adam was killed."""
    directory = tmp_path_factory.mktemp("extensions")
    (directory / "cpu_adam").mkdir()
    (directory / "cpu_adam/lock").touch()
    return directory


@pytest.fixture(scope="module")
def done(
    environment: dict[str, str], cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> subprocess.CompletedProcess[str]:
    env = {**environment, "TORCH_EXTENSIONS_DIR": str(cache)}
    return subprocess.run(
        [sys.executable, "-m", "dsfix", "doctor", "--json"],
        cwd=tmp_path_factory.mktemp("scratch"),
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def found(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _rules(found: dict[str, Any]) -> dict[str, str]:
    return {finding["rule"]: finding["what"] for finding in found["findings"]}


def test_the_import(found: dict[str, Any], release: Version) -> None:
    packages, rules = found["environment"]["packages"], _rules(found)
    needs_dsfix = release <= Version("0.14.3")  # with this torch and NumPy
    assert ("deepspeed_import_needs_dsfix" in rules) is needs_dsfix, packages["deepspeed_probe"]
    assert "deepspeed_import_fails" not in rules, packages["deepspeed_probe"]
    probe = packages["dsfix_probe"] if needs_dsfix else packages["deepspeed_probe"]
    assert probe["facts"]["import"]["version"] == str(release)
    assert "cpu_adam" in probe["facts"]["report"]["text"]


def test_facts_from_files(found: dict[str, Any], release: Version) -> None:
    packages = found["environment"]["packages"]
    assert packages["versions"]["deepspeed"] == str(release)
    assert packages["deepspeed"]["prebuilt"] == []
    assert packages["deepspeed"]["cuda_alike"]["11"][-1] == "11.8"
    assert ("cpu" in packages["deepspeed"]["accelerators"]) is (release >= Version("0.12.4"))


def test_facts_from_torch(found: dict[str, Any]) -> None:
    packages = found["environment"]["packages"]
    assert packages["torch_probe"]["stopped"] == ""
    assert packages["torch_probe"]["errors"] == {}
    assert packages["torch_probe"]["facts"]["collect_env"]["torch_version"] == packages["versions"]["torch"]


def test_a_lock_left_by_a_killed_build(
    done: subprocess.CompletedProcess[str], found: dict[str, Any], cache: Path
) -> None:
    assert str(cache / "cpu_adam/lock") in _rules(found)["stale_lock"]
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
