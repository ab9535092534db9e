"""A wheel, an sdist and an editable install work in a fresh environment, outside the checkout."""

import json
import os
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from tests.processes import ended

CHECKOUT = Path(__file__).resolve().parents[2]


def run(*command, cwd, **environment):
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return ended(command, cwd, {**env, **environment})


def succeed(*command, cwd, **environment):
    done = run(*command, cwd=cwd, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The sdist, and the wheel built from it."""
    directory = tmp_path_factory.mktemp("built")
    succeed(sys.executable, "-m", "build", "--outdir", directory, CHECKOUT, cwd=directory)
    return {path.suffix: path for path in directory.iterdir()}


def environment(directory):
    """A fresh virtual environment's Python."""
    succeed("uv", "venv", "--python", sys.executable, directory / "venv", cwd=directory)
    return directory / "venv" / "bin" / "python"


@pytest.mark.parametrize("kind", ["wheel", "sdist", "editable"])
def test_installed_outside_the_checkout(kind, built, tmp_path):
    python = environment(tmp_path)
    what = {"wheel": [built[".whl"]], "sdist": [built[".gz"]], "editable": ["--editable", CHECKOUT]}[kind]
    succeed("uv", "pip", "install", "--python", python, *what, cwd=tmp_path)

    listing = run(python, "-m", "dsfix", "list", "--json", cwd=tmp_path)
    assert listing.returncode == 3, listing.stderr
    assert "DeepSpeed is not installed" in json.loads(listing.stdout)["error"]

    reported = succeed(
        python, "-c", "import dsfix; print(*[(r.id, r.outcome.value) for r in dsfix.report()], sep='\\n')", cwd=tmp_path
    )
    assert "('zero3_offload_clip_device', 'not-affected')" in reported.splitlines()
    story = succeed(python, "-m", "dsfix", "show", "zero3_offload_clip_device", cwd=tmp_path)
    assert "deepspeed/issues/5422" in story.lower()
    assert succeed(python.with_name("dsfix"), "show", "zero3_offload_clip_device", cwd=tmp_path) == story
    reports = tmp_path / "reports"  # the script is not a process of a job either
    assert run(python.with_name("dsfix"), "list", cwd=tmp_path, DSFIX_REPORT=str(reports)).returncode == 3
    assert not reports.exists()

    installed = succeed("uv", "pip", "list", "--python", python, "--format", "json", cwd=tmp_path)
    names = {load["name"] for load in json.loads(installed)}
    assert "dsfix" in names
    assert not names & {"torch", "deepspeed", "numpy"}


def test_the_wheel_holds_what_the_product_needs_and_nothing_else(built):
    names = set(zipfile.ZipFile(built[".whl"]).namelist())
    package = CHECKOUT / "dsfix"
    files = [
        path
        for path in package.rglob("*")
        if path.suffix in (".py", ".cpp", ".h", ".json", ".toml", ".tsv", ".txt", ".typed")
    ]
    expected = {path.relative_to(CHECKOUT).as_posix() for path in files}
    expected |= {f"dsfix/{path.relative_to(CHECKOUT)}" for path in (CHECKOUT / "patches").rglob("*.py")}
    assert {name for name in names if ".dist-info/" not in name} == expected


def test_installing_never_changes_torch_or_deepspeed(built):
    metadata = zipfile.ZipFile(built[".whl"])
    name = next(each for each in metadata.namelist() if each.endswith(".dist-info/METADATA"))
    required = [line for line in metadata.read(name).decode().splitlines() if line.startswith("Requires-Dist:")]
    always = [line for line in required if "extra ==" not in line]
    assert sorted(line.split()[1].split(">")[0] for line in always) == ["packaging", "tomli", "wrapt"]


def test_a_plugin_is_installed_alongside_and_removed_again(built, tmp_path):
    patch_id = "dsfix-plugin-example:get_batch_info_methods"
    source = tmp_path / "source"
    shutil.copytree(CHECKOUT / "docs" / "plugin-example", source)  # a build leaves files there
    succeed(sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, source, cwd=tmp_path)
    [wheel] = tmp_path.glob("*.whl")
    python = environment(tmp_path)
    succeed("uv", "pip", "install", "--python", python, built[".whl"], wheel, cwd=tmp_path)
    report = "import dsfix; print(*[(r.id, r.outcome.value) for r in dsfix.report()], sep='\\n')"
    assert f"('{patch_id}', 'not-affected')" in succeed(python, "-c", report, cwd=tmp_path).splitlines()
    [story] = json.loads(succeed(python, "-m", "dsfix", "show", patch_id, "--json", cwd=tmp_path))["patches"]
    assert story["distribution"] == "dsfix-plugin-example"
    assert "Why: the docstring promises" in story["story"]
    succeed("uv", "pip", "uninstall", "--python", python, "dsfix-plugin-example", cwd=tmp_path)
    assert patch_id not in succeed(python, "-c", report, cwd=tmp_path)
