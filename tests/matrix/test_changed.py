"""What changed between two releases is found, marked and compared."""

import builtins

import pytest

from matrix.bystanders import hits, space
from matrix.bystanders.scenario import Scenario
from matrix.bystanders.space import Job
from matrix.bystanders.trials import NONE, PLAIN, JobResult
from matrix.changed import command, functions, marks
from matrix.changed.functions import MODULE

OLD = '''
"""Docstring."""
import os

LIMIT = 3


def outer(x):  # comment
    """Docstring."""
    if x:
        x += 1
    try:
        x += LIMIT
    except TypeError:
        return 0

    def inner():
        return 5

    return x + inner()


class Both:
    @property
    def value(self):
        return 1

    @value.setter
    def value(self, other):
        pass
'''


def changes(tmp_path, old, new):
    """name -> how it changed and the text of the new lines."""
    for release, text in (("old", old), ("new", new)):
        (tmp_path / release).mkdir()
        (tmp_path / release / "file.py").write_text(text)
    lines = new.splitlines()
    return {
        each.name: (each.how, [lines[number - 1].strip() for number in sorted(each.lines)])
        for each in functions.of_file("file.py", tmp_path / "old", tmp_path / "new")
    }


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ('"""Docstring."""', '"""Another."""', {}),
        ("LIMIT = 3", "LIMIT = 4", {MODULE: ("changed", ["LIMIT = 4"])}),
        ("        x += 1\n", "        x += 2\n", {"outer": ("changed", ["x += 2"])}),
        ("    if x:\n        x += 1\n", "", {"outer": ("changed", ["try:"])}),
        ("def outer(x)", "def outer(x=1)", {"outer": ("changed", ["def outer(x=1):  # comment"])}),
        ("        pass\n", "        self.x = other\n", {"Both.value": ("changed", ["self.x = other"])}),
        (
            "    def inner",
            "    def other",
            {"outer.inner": ("removed", []), "outer.other": ("added", ["def other():", "return 5"])},
        ),
    ],
)
def test_what_changed(tmp_path, before, after, expected):
    assert before in OLD
    assert changes(tmp_path, OLD, OLD.replace(before, after)) == expected


def test_marks_record_what_runs_and_change_nothing(monkeypatch):
    monkeypatch.setattr(hits, "run", {"file.py": set()})
    monkeypatch.setattr(builtins, hits.MARK, hits.mark, raising=False)
    lines = range(1, len(OLD.splitlines()) + 1)
    namespace = {"__name__": "file"}
    exec(compile(marks.marked(OLD.encode(), "file.py", lines), "file.py", "exec"), namespace)
    assert namespace["outer"].__doc__ == "Docstring."
    hits.run["file.py"].clear()
    assert namespace["outer"](0) == 8
    text = OLD.splitlines()
    ran = [text[number - 1].strip() for number in sorted(hits.run["file.py"])]
    assert ran[:3] == ["def outer(x):  # comment", "if x:", "try:"]
    assert "x += 1" not in ran
    assert "return 5" in ran
    namespace["outer"]([])
    assert {"except TypeError:", "return 0"} <= {text[number - 1].strip() for number in hits.run["file.py"]}


def test_code_that_is_compiled_for_a_device_has_no_marks():
    text = b"@triton.jit\ndef kernel(x):\n    y = x\n"
    assert marks.ast.unparse(marks.marked(text, "file.py", [2, 3])) == text.decode().strip()


class Trials:
    def __init__(self, *runs, plain=None):
        self.runs, self.plain = list(runs), plain

    def run(self, job, variant):
        return self.plain if variant == PLAIN else self.runs.pop(0) if variant == NONE else None


def seen(ended="", **notes):
    return JobResult(({"notes": list(notes.items()), "ended": ended, "collectives": [], "syncs": 0, "peak": 0},), False)


@pytest.mark.parametrize(
    ("old", "marked", "again", "expected"),
    [
        (seen(loss=1.0), seen(loss=1.0), None, ""),
        (seen(loss=1.0, padding=7.0), seen(loss=1.0, padding=8.0), seen(loss=1.0, padding=9.0), ""),
        (
            seen(loss=1.0, padding=7.0),
            seen(loss=2.0, padding=8.0),
            seen(loss=2.0, padding=9.0),
            "worse, up to 1.0e+00 at loss",
        ),
        (seen("Error: x"), seen(loss=1.0), seen(loss=1.0), "right, Error: x -> no exception"),
        (seen(loss=1.0), seen(loss=2.0), seen(loss=1.0), ""),  # the marks changed it, or nothing repeats it
    ],
)
def test_a_difference_is_one_that_repeats(old, marked, again, expected):
    job = Job(Scenario("a job", lambda job: None), space.plain())
    sentence = command.compared(job, Trials(old), Trials(again, plain=seen(loss=1.0)), marked)
    assert sentence.startswith(expected)
    assert bool(sentence) == bool(expected)
