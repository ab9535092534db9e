"""The pull request of every patch that applies to the installed release."""

import ast
import builtins
import subprocess
import symtable
from pathlib import Path

import pytest

from dsfix import survey
from dsfix.outcome import Outcome
from matrix.pull_requests.pull_request import pull_request


@pytest.fixture(scope="module")
def written(entries):
    """Patch id -> what can be written for it."""
    here = [each for each in entries.values() if survey.if_asked_for(each).outcome is Outcome.PENDING]
    return {each.id: pull_request(each) for each in here}


def test_most_can_be_written_and_the_rest_says_why(written):
    assert [name for name, each in written.items() if not (each.diff and each.test) and len(each.notes) != 1] == []
    edits = [each for each in written.values() if "at run time" not in "".join(each.notes)]
    assert len([each for each in edits if each.test]) > len(edits) * 0.7
    assert [name for name, each in written.items() if "not be valid Python" in "".join(each.notes)] == []


def test_each_diff_applies_and_leaves_no_name_undefined(written, original, tmp_path):
    """Compared with the file before: DeepSpeed's own files contain some undefined names."""
    repository = tmp_path / "repository"
    subprocess.run(["cp", "-r", str(original), str(repository)], check=True)
    for linked in ("accelerator", "ops/op_builder"):  # as in DeepSpeed's repository
        (repository / Path(linked).name).symlink_to(repository / "deepspeed" / linked)
    offenders = {}
    for name, each in written.items():
        if not each.diff or "op_builder" in each.diff or "b/accelerator" in each.diff:
            continue  # git does not follow the links
        paths = [line[6:] for line in each.diff.splitlines() if line.startswith("+++ b/")]
        before = {path: _undefined(repository / path) for path in paths}
        for options in (["--check"], []):
            subprocess.run(["git", "apply", *options], cwd=repository, input=each.diff, text=True, check=True)
        new = {path: _undefined(repository / path) - before[path] for path in paths}
        if any(new.values()):
            offenders[name] = new
        subprocess.run(["git", "apply", "--reverse"], cwd=repository, input=each.diff, text=True, check=True)
    assert offenders == {}


def _undefined(path):
    """The names that functions of the file use and that neither the file nor Python has."""
    if not path.is_file():
        return set()
    text = path.read_text(encoding="utf-8")
    if any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in ast.parse(text).body):
        return set()
    table = symtable.symtable(text, str(path), "exec")
    known = {each.get_name() for each in table.get_symbols() if each.is_assigned() or each.is_imported()}
    return {name for name in _globals(table) if name not in known and not hasattr(builtins, name)} - {"__file__"}


def _globals(table):
    for inner in table.get_children():
        yield from (each.get_name() for each in inner.get_symbols() if each.is_global() and each.is_referenced())
        yield from _globals(inner)
