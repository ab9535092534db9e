"""The release can be imported with today's torch and NumPy: always with dsfix, else if the catalogue says so."""

import re

import pytest
from packaging.version import Version

from dsfix.patch import Provide, Severity
from dsfix.versions import RangeMatch, gate

UNKNOWN = "this script requires dsfix, but no patch is called 'zero3'; `python -m dsfix find WORDS` searches"
LATE = (
    "this script requires dsfix, but DeepSpeed was imported first: move `import dsfix` to the first line of the script"
)


def _that_stop_the_import(entries):
    """Also on a machine without a GPU: names that torch and numpy lack."""
    return [
        entry
        for entry in entries.values()
        if entry.patch.severity is Severity.IMPORT
        and all(isinstance(change, Provide) for change in entry.patch.changes)
        and gate(entry.patch.affects).fit is RangeMatch.INSIDE
    ]


def test_with_dsfix_the_release_can_be_imported(run_program, entries):
    results, errors = run_program("imports", "dsfix")
    assert results["error"] is None
    assert "WARNING" not in errors
    assert {results["outcomes"][entry.id] for entry in _that_stop_the_import(entries)} <= {"applied"}
    assert [*results["outcomes"].values()].count("applied") >= 40
    assert (results["required"], results["unknown"]) == (None, UNKNOWN)


def test_without_dsfix_it_fails_exactly_when_the_catalogue_says_so(run_program, entries, release):
    results, _ = run_program("imports")
    expected = _that_stop_the_import(entries)
    assert bool(expected) == (release <= Version("0.14.3"))
    if expected:
        assert any(re.search(entry.patch.symptom, results["error"]) for entry in expected), results["error"]
    else:
        assert results["error"] is None


def test_a_script_requires_that_dsfix_comes_first(run_program, release):
    if release <= Version("0.14.3"):
        pytest.skip("this release cannot be imported without dsfix")
    results, _ = run_program("imports", "late")
    assert results["required"] == results["unknown"] == LATE


def test_names_that_the_script_has_provided_stay(run_program):
    results, errors = run_program("imports", "by hand", "dsfix")
    assert results["error"] is None
    assert results["provided"]
    assert "WARNING" not in errors
