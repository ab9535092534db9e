"""The page of the frameworks' own tests, and how outcomes are read."""

import xml.etree.ElementTree as xml

import pytest

from matrix.framework_tests import __main__ as tool


def made_up(**outcomes):
    """A record with these outcomes of one test."""
    suite = {"tests": "abc", "date": "2026-01-01", "versions": {}, "applied": ["some_patch"]}
    both = {"a.py::test_other": {"without": "passed", "with": "passed", "why": {}}}
    return {"accelerate": {**suite, "runs": {**both, "a.py::test_it": {**outcomes, "why": {"with": "a_b|c"}}}}}


def test_no_test_of_the_record_is_worse():
    assert tool.complain(tool.read()) == 0


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
def test_a_test_that_is_worse_or_missing_with_dsfix_is_reported(capsys, outcomes, status):
    assert tool.complain(made_up(**outcomes)) == status
    assert ("a.py::test_it is worse" in capsys.readouterr().err) == bool(status)


def test_text_is_escaped_on_the_page():
    assert r"a\_b\|c" in tool.render(made_up(without="passed", **{"with": "passed"}))


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ('<testcase classname="tests.a.B" name="test_it"/>', ("B::test_it", "passed", "")),
        ('<testcase classname="a" name="b"><skipped message="no  GPU"/></testcase>', ("a::b", "skipped", "no GPU")),
        ('<testcase classname="a" name="b"><error message="x"/></testcase>', ("a::b", "failed", "x")),
        ('<testcase classname="a" name="b"><system-out/></testcase>', ("a::b", "passed", "")),
    ],
)
def test_the_outcome_of_a_test(case, expected):
    assert tool._outcome(xml.fromstring(case)) == expected
