"""`upstream patches`: tests in a copy of a clone without a fix and with it; the committed page is the record."""

import subprocess

import pytest

from dsfix.cli.exits import Complaint
from matrix.pull_requests import command, docs, records
from matrix.pull_requests.records import Record, Row
from matrix.pull_requests.tree import Seen, Tree

ACCELERATOR = """
class CPU:
    def device_name(self): return "cpu"
    def create_op_builder(self, name): return name
def get_accelerator(accelerator=CPU()): return accelerator
"""
TEST = """
import os, sys
import pytest, torch
import deepspeed
from deepspeed.accelerator import get_accelerator
class TestIt:
    def test(self):
        assert "dsfix" not in sys.modules
        assert torch.multiprocessing.set_start_method("forkserver") is None
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
-BUG = True
+BUG = {}
"""
NEW = """\
diff --git a/tests/unit/test_bug.py b/tests/unit/test_bug.py
new file mode 100644
--- /dev/null
+++ b/tests/unit/test_bug.py
@@ -0,0 +1,{count} @@
{added}
"""


def _diff(after=False):
    lines = TEST.strip().splitlines()
    return FIX.format(after) + NEW.format(count=len(lines), added="\n".join(f"+{line}" for line in lines))


@pytest.fixture
def tree(tmp_path):
    clone = tmp_path / "clone"
    for directory in ("accelerator", "bin", "csrc", "deepspeed", "op_builder", "requirements", "tests/unit"):
        (clone / directory).mkdir(parents=True)
        (clone / directory / "__init__.py").touch()
    for name in ("setup.py", "version.txt", "tests/unit/test_bug.txt"):
        (clone / name).touch()
    (clone / "deepspeed" / "__init__.py").write_text("BUG = True\n")
    (clone / "deepspeed" / "accelerator.py").write_text(ACCELERATOR)
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"], ["tag", "v1.0"]):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", str(clone), *identity, *arguments], check=True)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    made = Tree(clone, scratch, seconds=100)
    yield made
    made.close()


def test_each_fix_is_tried_alone_and_taken_back(tree, monkeypatch, tmp_path):
    """The second one does not mend it; the third is skipped, and nobody waits for what kills the process."""
    monkeypatch.setattr(records, "FILE", tmp_path / "record.json")
    monkeypatch.setattr(records.save, "__defaults__", (tmp_path / "record.json",))
    diffs = {"mends": _diff(), "does_not": _diff(1), "dies": _diff("'hang'")}
    found = {name: {"diff": diff, "test": "tests/unit/test_bug.py", "notes": []} for name, diff in diffs.items()}
    monkeypatch.setattr(tree, "diff", found.__getitem__)
    record = Record("v1.0")
    command._all(tree, record, list(diffs))
    rows = record.rows
    assert rows["mends"].before == ["failed", "AssertionError: the bug is there"]
    assert rows["mends"].after == ["passed", ""]
    assert rows["mends"].shown
    assert rows["mends"].lines == 2
    assert rows["does_not"].after[0] == "failed"
    assert rows["does_not"].with_others[0] == "failed"  # the fixes change the same line
    assert rows["dies"].after == ["not run", "pytest did not finish"]
    assert (tree.directory / "deepspeed" / "__init__.py").read_text() == "BUG = True\n"
    assert tree.name == "v1.0"


def test_a_skip_is_told(tree):
    assert tree.apply(_diff("'skip'")) == ""
    assert tree.test(["tests/unit/test_bug.py"]) == {"tests/unit/test_bug.py": Seen("skipped", "no device")}


def test_what_is_no_clone_is_one_sentence(tmp_path):
    with pytest.raises(Complaint, match="is no clone of DeepSpeed"):
        Tree(tmp_path, tmp_path, seconds=1)


def test_a_row_is_in_one_table(monkeypatch):
    rows = {
        "a": Row(2, "t", before=["failed", "no"], after=["passed", ""]),
        "b": Row(2, "t", before=["failed", "no"], after=["failed", "other"], with_others=["passed", ""]),
        "c": Row(2, "t", before=["skipped", "fp16"]),
        "d": Row(2, "t", before=["failed", "x|y"], after=["failed", "other"], with_others=["failed", "other"]),
        "e": Row(0, "", notes=["e cannot be written: no"]),
    }
    page = docs.render([Record("v1.0", "2026-01-01", rows)])
    assert [line.partition(" | ")[0] for line in page.splitlines() if line.startswith("| `")] == [
        *("| `a`", "| `b`", "| `c`", "| `d`", "| `e`")
    ]
    assert "4 of 5 fixes can be written" in page
    assert "x\\|y" in page


def test_the_committed_record_is_without_faults():
    assert docs.faults([records.load()]) == []
