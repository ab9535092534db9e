"""DeepSpeed's own tests as an oracle: running, recording and judging; DeepSpeed and its tests are stand-ins here."""

import pytest

from dsfix.catalogue.registry import catalogue
from matrix import environments
from matrix.upstream import docs, fixes, processes, records, running
from matrix.upstream.explanations import EXPLANATIONS, Explanation, Kind
from matrix.upstream.fixes import FIXES, Fix
from matrix.upstream.records import Record, Run

ENGINE = "unit/runtime/test_ds_initialize.py"
OUTCOMES = """
import os, signal, sys, time
import deepspeed, pytest

def test_passes(): pass
def test_with(): assert "dsfix" in sys.modules
def test_without(): assert "dsfix" not in sys.modules
def test_skips(): pytest.skip("no device")
def test_raises(): raise ValueError("in /a/path/file.py at 0x7f0012345678")
def test_dies(): os.kill(os.getpid(), signal.SIGKILL)
def test_hangs(): signal.pause()
@pytest.mark.xfail
def test_expected(): assert False
@pytest.fixture
def broken(): raise KeyError("absent")
def test_broken(broken): pass
@pytest.mark.parametrize("number", range(10))
def test_numbers(number): pass
"""


@pytest.fixture
def clone(tmp_path):
    """A clone of DeepSpeed, whose package must not be imported."""
    file = tmp_path / "clone" / "tests" / ENGINE
    file.parent.mkdir(parents=True)
    file.write_text(OUTCOMES)
    (tmp_path / "clone" / "deepspeed").mkdir()
    (tmp_path / "clone" / "deepspeed" / "__init__.py").write_text("raise ImportError('the clone')")
    return tmp_path / "clone"


@pytest.fixture
def stand_in(tmp_path, monkeypatch, clone, records_in):
    """A session on a DeepSpeed with nothing to compile; records go below `tmp_path`."""
    installed = tmp_path / "installed"
    (installed / "deepspeed").mkdir(parents=True)
    (installed / "deepspeed" / "__init__.py").touch()
    (installed / "deepspeed-0.18.9.dist-info").mkdir()
    (installed / "deepspeed-0.18.9.dist-info" / "METADATA").write_text("Name: deepspeed\nVersion: 0.18.9\n")
    monkeypatch.setenv("DSFIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(environments, "installed", lambda release: installed)
    monkeypatch.setattr(processes.Session, "build", lambda self: None)
    records_in(records, tmp_path / "records")
    with processes.Session(clone, "0.18.9", 3.0, 2) as opened:
        yield opened


def ids(*names):
    return [f"{ENGINE}::test_{name}" for name in names]


class TestSession:
    def test_each_outcome_is_reported_and_the_other_tests_continue(self, stand_in):
        """Two tests end the process: one kills it, one hangs."""
        names = ("dies", "hangs", "with", "without", "skips", "raises", "expected", "broken", "passes")
        ended = {each.test.rpartition("_")[2]: each for each in stand_in.run("with", ids(*names))}
        assert {name: each.outcome for name, each in ended.items()} == {
            "dies": "died",
            "hangs": "timeout",
            "with": "passed",
            "without": "failed",
            "skips": "skipped",
            "raises": "failed",
            "expected": "xfailed",
            "broken": "error",
            "passes": "passed",
        }
        assert ended["without"].detail == "AssertionError"
        assert ended["skips"].detail == "no device"
        assert ended["raises"].detail == "ValueError: in file.py at …"

    def test_without_dsfix_means_without_it(self, stand_in):
        assert [each.outcome for each in stand_in.run("without", ids("with", "without"))] == ["failed", "passed"]
        assert stand_in.versions["deepspeed"] == "0.18.9"


class Engine:
    """Replaces a session: outcomes has each test's outcome without and with dsfix."""

    def __init__(self, **outcomes):
        self.versions = {"deepspeed": "0.18.9"}
        self.outcomes = outcomes
        self.ran = []
        self.needed = ""
        self.stops_at = ""

    def build(self):
        pass

    def run(self, variant, tests, left_out=()):
        self.ran.append((variant, tuple(tests)))
        for test in tests:
            if variant == "with" and test == self.stops_at:
                raise KeyboardInterrupt
            without, patched = self.outcomes[test]
            seen = patched if variant == "with" and self.needed not in left_out else without
            yield processes.Ended(test, seen, "" if seen == "passed" else "ValueError")


@pytest.fixture
def record(tmp_path, records_in):
    records_in(records, tmp_path / "records")
    return Record("0.18.9", "v0.18.9")


class TestRun:
    def test_what_is_in_the_record_is_not_run_again(self, record):
        engine = Engine(a=("passed", "passed"), b=("failed", "passed"))
        running.run(record, engine, ["a"])
        read = records.load("0.18.9", "v0.18.9")
        assert read.runs == {"a": Run(["passed"], ["passed"])}
        running.run(read, engine, ["a", "b"])
        assert engine.ran[2:] == [("without", ("b",)), ("with", ("b",))]
        running.run(read, engine, ["a", "b"], again=True)
        assert engine.ran[-1] == ("with", ("a", "b"))
        assert [each.better for each in read.runs.values()] == [False, True]

    def test_it_continues_after_an_interruption(self, record):
        engine = Engine(a=("passed", "passed"), b=("passed", "passed"), c=("passed", "passed"))
        engine.stops_at = "b"
        with pytest.raises(KeyboardInterrupt):
            running.run(record, engine, ["a", "b", "c"])
        engine.ran.clear()
        engine.stops_at = ""
        running.run(records.load("0.18.9", "v0.18.9"), engine, ["a", "b", "c"])
        assert [(variant, tests) for variant, tests in engine.ran if tests] == [("with", ("b", "c"))]

    def test_worse_tests_are_repeated_on_both_sides(self, record):
        running.run(record, Engine(a=("passed", "failed"), b=("passed", "passed")), ["a", "b"])
        assert record.runs["a"] == Run(["passed"] * 3, ["failed"] * 3, {"with": "ValueError"})
        assert record.runs["b"].without == ["passed"]

    @pytest.mark.parametrize(
        ("without", "patched", "worse"),
        [
            ("passed", "failed", True),
            ("passed", "skipped", True),
            ("failed", "timeout", True),
            ("failed", "error", False),
            ("skipped", "passed", False),
        ],
    )
    def test_worse(self, without, patched, worse):
        assert Run([without], [patched]).worse is worse
        assert not Run([without, patched], [patched]).worse

    def test_the_patch_of_a_fix_is_found_by_disabling_it(self, record, monkeypatch):
        monkeypatch.setattr(fixes, "FIXES", (Fix(1, "0.19.0", ("a",), ("other", "fix")),))
        engine = Engine(a=("failed", "passed"))
        engine.needed = "fix"
        running.run(record, engine, ["a"])
        running.find_patches(record, engine)
        assert record.runs["a"].left_out == {"other": "passed", "fix": "failed"}
        assert records.load("0.18.9", "v0.18.9").runs == record.runs

    def test_of_tests_of_another_release_only_those_of_fixes_are_run(self, monkeypatch):
        monkeypatch.setattr(fixes, "FIXES", (Fix(1, "0.19.0", ("file::of_fix",)),))
        tests = ["file::of_fix[1]", "file::of_fix[2]", "file::other"]
        assert running.chosen(tests, Record("0.18.9", "v0.19.8"), (), None) == tests[:2]
        assert running.chosen(tests, Record("0.19.0", "v0.19.8"), (), None) == [], "it has the fix"
        assert running.chosen(tests, Record("0.18.9", "v0.18.9"), (), 1) == ["file::of_fix[1]", "file::other"]
        assert running.chosen(tests, Record("0.18.9", "v0.19.8"), ["file::o"], None) == tests


WORSE = Record("0.18.9", "v0.18.9", collected=5, runs={"unit/a.py::b[1]": Run(["passed"] * 3, ["failed"] * 3)})
ASSERTS = Explanation("unit/a.py::b", "<0.19", Kind.ASSERTS_BUG, "because")


class TestPage:
    def test_a_worse_test_needs_an_explanation(self):
        assert len(list(docs.faults([WORSE], (), ()))) == 1
        assert list(docs.faults([WORSE], (ASSERTS,), ())) == []
        assert "| 1 of 5 | 0 | 0 | 0 | 0 | 1, 1 explained |" in docs.render([WORSE], (ASSERTS,), ())
        assert "| `a.py::b[1]` | passed | failed | asserts the bug: because |" in docs.render([WORSE], (ASSERTS,), ())

    def test_a_fix_is_a_row_with_the_patch_that_was_needed(self):
        patch = next(iter(catalogue()))
        fix = Fix(7, "0.18.0", ("unit/a.py",), (patch,))
        link = "[#7](https://github.com/deepspeedai/DeepSpeed/pull/7)"
        row = f"| `a.py::b[1]` | {link}, 0.18.0 | 0.16.9 | failed | passed |"
        for left_out, cell, faults in (
            ({}, "not run", 0),
            ({patch: "failed"}, "failed", 0),
            ({patch: "passed"}, "", 1),
        ):
            record = Record("0.16.9", "v0.18.9", runs={"unit/a.py::b[1]": Run(["failed"], ["passed"], {}, left_out)})
            needed = f" [{patch}](../bugs/{patch}.md): {cell}" if cell else " "
            assert f"{row}{needed} |" in docs.render([record], (), (fix,))
            assert len(list(docs.faults([record], (), (fix,)))) == faults


class TestCommitted:
    def test_every_record_is_of_a_known_release(self):
        for record in records.load_all():
            assert records.path(record.release, record.tests).is_file()
            assert not record.collected or record.collected >= len(record.runs)

    def test_nothing_is_worse_without_an_explanation(self):
        assert list(docs.faults(records.load_all(), EXPLANATIONS, FIXES)) == []
