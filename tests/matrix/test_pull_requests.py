"""`upstream patches`: the change of a clone of DeepSpeed, and tests in a copy of it without a fix and with it."""

import argparse
import ast
import shutil
import subprocess

import pytest

from dsfix.cli.exits import Complaint
from matrix.pull_requests import command, tree

FLAGSHIP = "zero3_offload_clip_device"
WRITTEN = f"tests/unit/runtime/zero/test_{FLAGSHIP}.py"
ACCELERATOR = """
class CPU:
    def device_name(self): return "cpu"
    def create_op_builder(self, name): return name
def get_accelerator(accelerator=CPU()): return accelerator
"""
TEST = """
import os, sys
import pytest, torch.multiprocessing
import deepspeed
from deepspeed.accelerator import get_accelerator
class TestIt:
    def test(self):
        assert "dsfix" not in sys.modules
        assert torch.multiprocessing.set_start_method("forkserver") == ("fork", True)
        assert get_accelerator().create_op_builder("ShareMemCommBuilder") is None
        if deepspeed.BUG == "skip":
            pytest.skip("no device")
        if deepspeed.BUG == "hang":
            os.kill(os.getpid(), 9)
        assert not deepspeed.BUG, "the bug is there"
"""
FIX = """\
diff --git a/deepspeed/__init__.py b/deepspeed/__init__.py
--- a/deepspeed/__init__.py
+++ b/deepspeed/__init__.py
@@ -1 +1 @@
-BUG = {before}
+BUG = {after}
"""
NEW = """\
diff --git a/tests/unit/test_bug.py b/tests/unit/test_bug.py
new file mode 100644
--- /dev/null
+++ b/tests/unit/test_bug.py
@@ -0,0 +1,{count} @@
{added}
"""


def _run(*arguments):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    options = parser.parse_args([*map(str, arguments)])
    return options.action(options)


class TestApply:
    @pytest.fixture
    def clone(self, environment, tmp_path_factory, monkeypatch):
        """A clone has no metadata: whatever DeepSpeed is installed, the clone's source decides."""
        shutil.rmtree(environment.install("0.14.2").directory / "deepspeed-0.14.2.dist-info")
        installed = type(environment)(tmp_path_factory.mktemp("installed")).install("0.19.0", stage3="")
        monkeypatch.setenv("PYTHONPATH", str(installed.directory))
        return environment.directory

    def test_the_clone_gets_the_fix_and_its_test_and_is_fixed_then(self, clone, environment, capsys):
        assert _run("apply", FLAGSHIP, "--clone", clone) == 0
        assert "if torch.is_tensor(combined_scale):" in environment.stage3.read_text()
        assert (clone / WRITTEN).is_file()
        assert _run("apply", FLAGSHIP, "--clone", clone) == 1
        assert capsys.readouterr().err.startswith(f"patches: {FLAGSHIP} does not apply here: already-fixed")

    def test_the_test_is_in_the_form_of_deepspeeds_and_without_dsfix(self, clone):
        _run("apply", FLAGSHIP, "--clone", clone)
        text = (clone / WRITTEN).read_text()
        assert "dsfix" not in text.lower()
        assert text.splitlines()[1:4:2] == ["# SPDX-License-Identifier: Apache-2.0", "# DeepSpeed Team"]
        classes = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
        [test] = [each for each in classes if [ast.unparse(base) for base in each.bases] == ["DistributedTest"]]
        assert [node.name for node in test.body if isinstance(node, ast.FunctionDef)] == ["test"]
        assert "from unit.common import DistributedTest" in text

    def test_an_unknown_patch_is_one_sentence(self, tmp_path):
        with pytest.raises(Complaint, match="no patch is called 'nothing'"):
            _run("apply", "nothing", "--clone", tmp_path)


class TestRun:
    @pytest.fixture
    def clone(self, tmp_path, monkeypatch):
        torch = tmp_path / "torch"  # a stand-in, which is imported faster
        torch.mkdir()
        (torch / "__init__.py").touch()
        (torch / "multiprocessing.py").write_text("set_start_method = lambda method, force=False: (method, force)\n")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        clone = tmp_path / "clone"
        for directory in ("accelerator", "bin", "csrc", "deepspeed", "op_builder", "requirements", "tests/unit"):
            (clone / directory).mkdir(parents=True)
            (clone / directory / "__init__.py").touch()
        for name in ("setup.py", "version.txt", "tests/unit/test_bug.txt"):
            (clone / name).touch()
        (clone / "deepspeed" / "__init__.py").write_text("BUG = True\n")
        (clone / "deepspeed" / "accelerator.py").write_text(ACCELERATOR)
        for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
            identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
            subprocess.run(["git", "-C", str(clone), *identity, *arguments], check=True)
        return clone

    @pytest.fixture
    def tried(self, clone, monkeypatch, capsys):
        """The output for pull requests that change BUG like this; the exit status."""
        lines = TEST.strip().splitlines()
        new = NEW.format(count=len(lines), added="\n".join(f"+{line}" for line in lines))

        def run(**changes):
            found = {
                name: {"diff": FIX.format(before=before, after=after) + new, "test": "tests/unit/test_bug.py"}
                for name, (before, after) in changes.items()
            }
            found["unwritable"] = {"diff": "", "test": "", "notes": ["it sets a name at run time"]}
            monkeypatch.setattr(tree, "pull_requests", lambda *_: found)
            status = _run("run", "--clone", clone)
            return dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines()), status

        return run

    def test_each_fix_is_tried_alone(self, tried):
        told, status = tried(
            mends=(True, False), mends_too=(True, 0)
        )  # of different sizes: bytecode of the same second
        assert told["mends"] == told["mends_too"] == "failed: AssertionError: the bug is there, then passed"
        assert (told["unwritable"], status) == ("it sets a name at run time", 0)

    def test_a_fix_that_does_not_help_is_trouble(self, tried):
        """A test that kills its process is not waited for."""
        told, status = tried(does_not=(True, 1), dies=(True, "'hang'"), refused=(False, True))
        bug = "failed: AssertionError: the bug is there"
        assert told["does_not"].startswith(bug)
        assert told["dies"] == f"{bug}, then not run: pytest did not finish"
        assert "patch does not apply" in told["refused"]
        assert status == 1

    def test_a_skipped_test_is_run_once_and_is_not_trouble(self, tried, clone):
        (clone / "deepspeed" / "__init__.py").write_text('BUG = "skip"\n')
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", str(clone), *identity, "commit", "-qam", "skip"], check=True)
        told, status = tried(skipped=('"skip"', False))
        assert (told["skipped"], status) == ("skipped: no device", 0)

    def test_a_directory_that_is_not_a_clone_is_one_sentence(self, tmp_path):
        with pytest.raises(Complaint, match="is no clone of DeepSpeed"):
            _run("run", "--clone", tmp_path)
