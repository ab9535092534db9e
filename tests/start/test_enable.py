"""`enable`, `disable`, `status`: a .pth file in the environment of the Python that runs them, and nothing else."""

import json
import shutil
import subprocess
import venv
from pathlib import Path

import dsfix.patches
import packaging
import pytest

import dsfix
from tests.processes import ended

JOB = """\
import sys
assert "dsfix" not in sys.modules
import deepspeed
print("dsfix" in sys.modules)
"""


def install(directory):
    """An installed dsfix, by symbolic links."""
    (directory / "dsfix").mkdir(parents=True)
    for path in Path(dsfix.__file__).parent.iterdir():
        (directory / "dsfix" / path.name).symlink_to(path)
    if not (directory / "dsfix" / "patches").exists():  # an editable installation
        (directory / "dsfix" / "patches").symlink_to(Path(dsfix.patches.__file__).parent)
    (directory / "packaging").symlink_to(Path(packaging.__file__).parent)
    (directory / "deepspeed").mkdir()
    (directory / "deepspeed" / "__init__.py").touch()


class Installation:
    """A Python, and the directory of its packages."""

    def __init__(self, python, packages, **variables):
        self.python, self.packages, self.variables = str(python), packages, variables
        self.file = packages / "dsfix.pth"

    def run(self, *arguments):
        return ended([self.python, *arguments], self.packages, {"PATH": "/usr/bin:/bin", **self.variables})

    def dsfix(self, *arguments):
        return self.run("-m", "dsfix", *arguments)

    def patched(self, *options):
        done = self.run(*options, "-c", JOB)
        assert done.returncode == 0, done.stderr
        return {"True": True, "False": False}[done.stdout.strip()]


@pytest.fixture
def installation(tmp_path):
    """A virtual environment with dsfix installed."""
    venv.create(tmp_path / "venv", symlinks=True)
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    install(packages)
    return Installation(tmp_path / "venv" / "bin" / "python", packages)


def test_enable_and_disable(installation):
    assert not installation.patched()
    enabled = installation.dsfix("enable")
    assert enabled.stdout == f"dsfix is now enabled for {installation.python} by {installation.file}\n", enabled.stderr
    assert installation.patched()
    assert installation.patched("-I")
    content = installation.file.read_bytes()
    assert "already enabled" in installation.dsfix("enable").stdout
    assert installation.file.read_bytes() == content
    assert [path.name for path in installation.packages.iterdir() if "dsfix." in path.name] == ["dsfix.pth"]
    assert f" any more: {installation.file} was removed\n" in installation.dsfix("disable").stdout
    assert not installation.file.exists()
    assert not installation.patched()
    again = installation.dsfix("disable")
    assert (again.returncode, "does not exist" in again.stdout) == (0, True)


def test_after_uninstalling_an_enabled_environment_starts_silently(installation):
    installation.dsfix("enable")
    shutil.rmtree(installation.packages / "dsfix")
    done = installation.run("-c", "import sys, deepspeed; print(sum('dsfix' in each for each in sys.path))")
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_enabled_and_under_run_is_loaded_once(installation):
    installation.dsfix("enable")
    code = "import sys; print(sum('_dsfix_start' in type(each).__module__ for each in sys.meta_path)); import deepspeed"
    done = installation.dsfix("run", installation.python, "-c", code)
    assert done.stdout == "1\n"
    assert done.stderr.count("[dsfix]") == 1


def status(installation):
    done = installation.dsfix("status", "--json")
    return done.returncode, json.loads(done.stdout)


def test_status(installation):
    code, results = status(installation)
    assert (code, results["enabled"], results["files"], results["run"]) == (0, False, [], False)
    assert results["dsfix"] == dsfix.__version__
    assert results["directory"] == str(installation.packages / "dsfix")
    assert "`python -m dsfix enable`" in installation.dsfix("status").stdout

    installation.dsfix("enable")
    code, results = status(installation)
    assert (code, results["enabled"], results["files"]) == (0, True, [str(installation.file)])
    assert str(installation.file) in installation.dsfix("status").stdout

    installation.file.write_text("import sys\n")
    code, results = status(installation)
    assert (code, results["enabled"]) == (1, False)
    assert "has no effect" in installation.dsfix("status").stdout
    installation.dsfix("enable")
    assert status(installation)[1]["enabled"]


def test_status_under_run(installation):
    done = installation.dsfix("run", installation.python, "-m", "dsfix", "status", "--json")
    results = json.loads(done.stdout)
    assert (results["enabled"], results["files"], results["run"]) == (True, [], True)


def test_status_with_dsfix_disabled(installation):
    installation.variables["DSFIX_DISABLE"] = "1"
    assert "DSFIX_DISABLE" in installation.dsfix("status").stdout


def test_a_virtual_environment_with_system_packages(tmp_path):
    """The file goes to the environment of the Python that runs `enable`; the system environment is unchanged."""
    base = Installation(tmp_path / "base" / "bin" / "python", tmp_path)
    venv.create(tmp_path / "base", symlinks=True)
    (packages,) = (tmp_path / "base").glob("lib/python*/site-packages")
    install(packages)
    base = Installation(base.python, packages)
    above = tmp_path / "above"
    venv.create(above, system_site_packages=True, symlinks=True)
    (own,) = above.glob("lib/python*/site-packages")
    (own / "base.pth").write_text(f"import site; site.addsitedir({str(packages)!r})\n")
    upon = Installation(above / "bin" / "python", own)
    upon.dsfix("enable")
    assert upon.file.exists()
    assert not base.file.exists()
    assert upon.patched()
    assert not base.patched()


def test_a_path_with_odd_characters(tmp_path):
    place = tmp_path / "it's a \"ü\\n"
    venv.create(place, symlinks=True)
    (packages,) = place.glob("lib/python*/site-packages")
    install(packages)
    odd = Installation(place / "bin" / "python", packages, LC_ALL="C")
    assert odd.dsfix("enable").returncode == 0
    assert odd.patched()


def test_dsfix_in_the_user_site(tmp_path, base_python):
    where = [base_python, "-c", "import site; print(site.getusersitepackages())"]
    done = subprocess.run(where, env={"PYTHONUSERBASE": str(tmp_path)}, capture_output=True, text=True, check=True)
    packages = Path(done.stdout.strip())
    install(packages)
    users = Installation(base_python, packages, PYTHONUSERBASE=str(tmp_path))
    assert users.dsfix("enable").returncode == 0
    assert users.file.exists()
    assert users.patched()
    assert users.dsfix("disable").returncode == 0
    assert not users.patched()


def test_a_read_only_environment(installation):
    installation.file.mkdir()
    for command in ("enable", "disable"):
        done = installation.dsfix(command)
        assert done.returncode == 2
        (sentence,) = done.stderr.splitlines()
        assert sentence.startswith(f"dsfix: {installation.file} cannot be ")
    assert [path.name for path in installation.packages.iterdir() if path.name.endswith(".partial")] == []
