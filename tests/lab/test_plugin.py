"""The tests shown in docs/plugins.md; `python -m tox run -e plugin-example` runs those of the example itself."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PATCH_ID = "dsfix-plugin-example:get_batch_info_methods"


@pytest.fixture(scope="module")
def installed(tmp_path_factory, has_deepspeed):
    """A directory for PYTHONPATH with the example installed."""
    directory = tmp_path_factory.mktemp("installed")
    source = directory / "source"
    shutil.copytree(DOCS / "plugin-example", source)  # a build leaves files in the source
    command = ["uv", "pip", "install", "--python", sys.executable, "--no-deps", "--no-build-isolation"]
    target = directory / "target"
    subprocess.run([*command, "--target", str(target), str(source)], check=True, capture_output=True)
    return target


@pytest.fixture(scope="module")
def run(installed, tmp_path_factory):
    """Runs Python with the plug-in."""
    path = os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH")])])
    elsewhere = tmp_path_factory.mktemp("elsewhere")

    def start(*arguments, cwd=elsewhere, **variables):
        return subprocess.run(
            [sys.executable, *arguments],
            env={
                **os.environ,
                "PYTHONPATH": path,
                "DS_ACCELERATOR": "cpu",
                "PYTHONDONTWRITEBYTECODE": "1",
                **variables,
            },
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=600,
        )

    return start


def _tested(run, directory, *options, **variables):
    """name -> (outcome, text) of all tests in the directory."""
    done = run("-m", "pytest", "-p", "no:cacheprovider", "--junitxml=found.xml", *options, cwd=directory, **variables)
    assert (directory / "found.xml").exists(), done.stdout + done.stderr
    found = {}
    for case in ElementTree.parse(directory / "found.xml").iter("testcase"):
        result = next(iter(case), None)
        text = "" if result is None else f"{result.get('message')}\n{result.text}"
        found[str(case.get("name"))] = ("passed" if result is None else result.tag, text)
    return found


def _page(name, directory):
    """Writes the files that docs/plugins.md shows below `name` to `directory`, and returns it."""
    blocks = re.findall(rf"```python\n# {name}/(\S+)\n(.*?)```", (DOCS / "plugins.md").read_text("utf-8"), re.S)
    for path, text in blocks:
        (directory / path).write_text(text, encoding="utf-8")
    return directory


def test_the_authors_tests_on_the_page(run, tmp_path):
    """A sample; `python -m tox run -e plugin-example` runs all tests of the example."""
    directory = _page("plugin", tmp_path)
    only = f"{PATCH_ID},no_sync_incompatible"
    found = _tested(run, directory, "-k", "disabled_by or together", DSFIX_ONLY=only)
    outcomes = {name.partition("-")[0]: outcome for name, (outcome, _) in found.items()}
    assert outcomes == {
        "test_contract[disabled_by_the_environment": "passed",
        "test_all_that_applies_here_lives_together": "passed",
    }, found


def test_the_fine_tuning_tests_on_the_page(run, emulated, tmp_path):
    directory = _page("repo", tmp_path)
    found = _tested(run, directory)
    assert {name: outcome for name, (outcome, _) in found.items()} == {
        "test_the_loss_falls_with_zero3_and_offload": "passed",
        "test_the_scale_moves_with_the_model": "passed",
    }, found
    module = directory / "finetune.py"
    broken = module.read_text().replace('self.register_buffer("scale", ', "self.scale = (")
    assert broken != module.read_text()
    module.write_text(broken)
    outcome, text = _tested(run, directory, "-k", "scale")["test_the_scale_moves_with_the_model"]
    assert outcome == "failure"
    assert "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu" in text
