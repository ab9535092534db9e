"""The page of the frameworks' own tests, and how outcomes are read."""

from __future__ import annotations

import json
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

from matrix.framework_tests import __main__ as tool


@pytest.fixture
def docs(monkeypatch: pytest.MonkeyPatch):
    """Calls `docs` with these arguments and returns the exit status."""

    def call(*arguments: str) -> int:
        monkeypatch.setattr("sys.argv", ["framework_tests", "docs", *arguments])
        return tool.main()

    return call


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Creates a record with these outcomes of one test, and returns its page."""

    def call(**outcomes: str) -> Path:
        suite = {"tests": "abc", "date": "2026-01-01", "versions": {}, "applied": ["some_patch"]}
        both = {"a.py::test_other": {"without": "passed", "with": "passed", "why": {}}}
        record = {"accelerate": {**suite, "runs": {**both, "a.py::test_it": {**outcomes, "why": {"with": "a_b|c"}}}}}
        for name in ("RECORD", "PAGE"):
            monkeypatch.setattr(tool, name, tmp_path / name)
        (tmp_path / "RECORD").write_text(json.dumps(record), encoding="utf-8")
        return tmp_path / "PAGE"

    return call


def test_the_page_matches_the_record_and_no_test_is_worse(docs) -> None:
    assert docs("--check") == 0


@pytest.mark.parametrize(
    ("outcomes", "status"),
    [
        ({"without": "passed", "with": "passed"}, 0),
        ({"without": "failed", "with": "passed"}, 0),
        ({"without": "failed", "with": "failed"}, 0),
        ({"without": "passed", "with": "skipped"}, 1),
        ({"without": "skipped", "with": "failed"}, 1),
        ({"without": "failed"}, 1),
    ],
)
def test_a_test_that_is_worse_or_missing_with_dsfix_is_reported(docs, made_up, capsys, outcomes, status) -> None:
    made_up(**outcomes)
    assert docs() == status
    assert ("a.py::test_it is worse" in capsys.readouterr().err) == bool(status)


def test_a_stale_page_is_reported_and_rewritten(docs, made_up, capsys) -> None:
    page = made_up(without="passed", **{"with": "passed"})
    assert docs("--check") == 1
    assert "is stale" in capsys.readouterr().err
    assert docs() == docs("--check") == 0
    assert r"a\_b\|c" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ('<testcase classname="tests.a.B" name="test_it"/>', ("B::test_it", "passed", "")),
        ('<testcase classname="a" name="b"><skipped message="no  GPU"/></testcase>', ("a::b", "skipped", "no GPU")),
        ('<testcase classname="a" name="b"><error message="x"/></testcase>', ("a::b", "failed", "x")),
        ('<testcase classname="a" name="b"><system-out/></testcase>', ("a::b", "passed", "")),
    ],
)
def test_the_outcome_of_a_test(case, expected) -> None:
    assert tool._outcome(xml.fromstring(case)) == expected
