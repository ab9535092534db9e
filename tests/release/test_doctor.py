"""`python -m dsfix doctor` with the real release: it reports what an import reports."""

import json
import sys

import pytest
from packaging.version import Version

from tests.processes import ended


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A TORCH_EXTENSIONS_DIR in which a build of cpu_adam was killed."""
    directory = tmp_path_factory.mktemp("extensions")
    (directory / "cpu_adam").mkdir()
    (directory / "cpu_adam/lock").touch()
    return directory


@pytest.fixture(scope="module")
def done(environment, cache, tmp_path_factory):
    command = [sys.executable, "-m", "dsfix", "doctor", "--json"]
    return ended(command, tmp_path_factory.mktemp("scratch"), {**environment, "TORCH_EXTENSIONS_DIR": str(cache)})


@pytest.fixture(scope="module")
def found(done):
    return json.loads(done.stdout)


def _rules(found):
    return {finding["rule"]: finding["what"] for finding in found["findings"]}


def test_the_import(found, release):
    packages, rules = found["environment"]["packages"], _rules(found)
    needs_dsfix = release <= Version("0.14.3")  # with this torch and NumPy
    assert ("deepspeed_import_needs_dsfix" in rules) is needs_dsfix, packages["deepspeed_probe"]
    assert "deepspeed_import_fails" not in rules, packages["deepspeed_probe"]
    probe = packages["dsfix_probe"] if needs_dsfix else packages["deepspeed_probe"]
    assert probe["facts"]["import"]["version"] == str(release)
    assert "cpu_adam" in probe["facts"]["report"]["text"]


def test_facts_from_files(found, release):
    packages = found["environment"]["packages"]
    assert packages["versions"]["deepspeed"] == str(release)
    assert packages["deepspeed"]["prebuilt"] == []
    assert packages["deepspeed"]["cuda_alike"]["11"][-1] == "11.8"
    assert ("cpu" in packages["deepspeed"]["accelerators"]) is (release >= Version("0.12.4"))


def test_facts_from_torch(found):
    packages = found["environment"]["packages"]
    assert packages["torch_probe"]["stopped"] == ""
    assert packages["torch_probe"]["errors"] == {}
    result = packages["torch_probe"]["facts"]["import"]["version"]  # the index's metadata has no "+cu130"
    assert result.partition("+")[0] == packages["versions"]["torch"].partition("+")[0]


def test_a_lock_left_by_a_killed_build(done, found, cache):
    assert str(cache / "cpu_adam/lock") in _rules(found)["stale_lock"]
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
