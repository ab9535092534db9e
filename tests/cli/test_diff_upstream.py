"""`diff ID --upstream`: what it writes for a clone of DeepSpeed, on a stand-in."""

import ast
import json
import shutil
import subprocess
import sys

import pytest

FLAGSHIP = "zero3_offload_clip_device"
TEST = f"tests/unit/runtime/zero/test_{FLAGSHIP}.py"


@pytest.fixture
def diff(environment):
    """What it prints for the stand-in of 0.14.2."""
    done = environment.install("0.14.2").dsfix("diff", FLAGSHIP, "--upstream")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def _apply(environment, diff, *options):
    subprocess.run(["git", "apply", *options], cwd=environment.directory, input=diff, text=True, check=True)


def test_one_diff_has_the_fix_and_its_test(environment, diff):
    _apply(environment, diff, "--check")
    _apply(environment, diff)
    assert "if torch.is_tensor(combined_scale):" in environment.stage3.read_text()
    assert (environment.directory / TEST).is_file()
    listed = json.loads(environment.dsfix("list", "--json").stdout)["patches"]
    assert {each["id"]: each["outcome"] for each in listed}[FLAGSHIP] == "already-fixed"


def test_either_part_applies_alone(environment, diff):
    _apply(environment, diff, "--include=tests/*")
    assert "is_tensor" not in environment.stage3.read_text()
    _apply(environment, diff, "--exclude=tests/*")
    assert "is_tensor" in environment.stage3.read_text()


def test_the_test_is_in_the_form_of_deepspeeds_and_without_dsfix(environment, diff):
    _apply(environment, diff, "--include=tests/*")
    text = (environment.directory / TEST).read_text()
    assert "dsfix" not in text.lower()
    assert text.splitlines()[1:4:2] == ["# SPDX-License-Identifier: Apache-2.0", "# DeepSpeed Team"]
    classes = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    [test] = [each for each in classes if [ast.unparse(base) for base in each.bases] == ["DistributedTest"]]
    assert [node.name for node in test.body if isinstance(node, ast.FunctionDef)] == ["test"]
    assert "from unit.common import DistributedTest" in text


def test_where_it_is_fixed_there_is_no_diff(environment, diff):
    _apply(environment, diff)
    done = environment.dsfix("diff", FLAGSHIP, "--upstream")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"dsfix: {FLAGSHIP} does not apply here: already-fixed")


def test_in_a_clone_it_is_about_the_clone(environment, tmp_path_factory):
    """A clone has no metadata: whatever DeepSpeed is installed besides, the clone's source decides."""
    clone = environment.install("0.14.2").directory
    shutil.rmtree(clone / "deepspeed-0.14.2.dist-info")
    installed = type(environment)(tmp_path_factory.mktemp("installed")).install("0.19.0", stage3="")
    command = [sys.executable, "-m", "dsfix", "diff", FLAGSHIP, "--upstream"]
    done = subprocess.run(command, env=installed.variables(), cwd=clone, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("diff --git a/deepspeed/runtime/zero/stage3.py")


@pytest.mark.parametrize("ids", [(), (FLAGSHIP, "zero3_empty_parameter")])
def test_it_takes_one_id(environment, ids):
    done = environment.install("0.14.2").dsfix("diff", *ids, "--upstream")
    assert done.returncode == 2
    assert done.stderr == "dsfix: --upstream takes one ID: a pull request fixes one bug\n"


def test_as_json(environment, diff):
    found = json.loads(environment.dsfix("diff", FLAGSHIP, "--upstream", "--json").stdout)
    assert found == {"diff": diff, "test": TEST, "notes": []}
