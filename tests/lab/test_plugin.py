"""The plug-in example, as its user and as its author; and the tests shown in docs/plugins.md."""

import json
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
APPLY = """
import dsfix, json
import deepspeed.runtime.engine as engine
from types import SimpleNamespace
info = engine.DeepSpeedEngine.get_batch_info
numbers = SimpleNamespace(train_batch_size=lambda: 6, train_micro_batch_size_per_gpu=lambda: 2,
                          gradient_accumulation_steps=lambda: 3)
result = info(numbers)
dsfix.revert(PATCH_ID)
print(json.dumps([result, [callable(each) for each in info(numbers)]]))
"""


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


def test_the_commands_know_it_and_it_fixes_its_bug(run):
    listed = json.loads(run("-m", "dsfix", "list", "--json").stdout)
    [row] = [each for each in listed["patches"] if each["distribution"] == "dsfix-plugin-example"]
    assert (row["id"], row["outcome"]) == (PATCH_ID, "pending")
    assert "+            self.train_batch_size()," in run("-m", "dsfix", "diff", PATCH_ID).stdout.splitlines()
    verified = run("-m", "dsfix", "verify", PATCH_ID, "--json")
    assert verified.returncode == 0, verified.stderr
    assert [each["state"] for each in json.loads(verified.stdout)["patches"]] == ["fixed"]
    applied = run("-c", f"PATCH_ID = {PATCH_ID!r}\n{APPLY}")
    assert applied.returncode == 0, applied.stderr
    assert json.loads(applied.stdout.splitlines()[-1]) == [[6, 2, 3], [True, True, True]]


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
    found = _tested(run, directory, "-k", "disabled_by or fixing or together", DSFIX_ONLY=only)
    outcomes = {name.partition("-")[0]: outcome for name, (outcome, _) in found.items()}
    assert outcomes == {
        "test_contract[disabled_by_the_environment": "passed",
        "test_contract[the_fixing_release_is_left_alone": "skipped",  # there is none
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
