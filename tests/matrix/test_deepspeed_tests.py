"""DeepSpeed's own tests as an oracle: running, recording and judging; DeepSpeed and its tests are stand-ins here."""

from typing import ClassVar

import pytest

from matrix import environments
from matrix.deepspeed_tests import docs, processes, records, running
from matrix.deepspeed_tests.explanations import EXPLANATIONS, Explanation, Kind
from matrix.deepspeed_tests.fixes import FIXES
from matrix.deepspeed_tests.records import Record, Run

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
"""


EXPECTED = {
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


@pytest.fixture
def session(tmp_path, monkeypatch):
    """A session on a DeepSpeed with nothing to compile; the clone's own package must not be imported."""
    clone, installed = tmp_path / "clone", tmp_path / "installed"
    information = installed / "deepspeed-0.18.9.dist-info"
    for directory in ((clone / "tests" / ENGINE).parent, clone / "deepspeed", installed / "deepspeed", information):
        directory.mkdir(parents=True)
    (clone / "tests" / ENGINE).write_text(OUTCOMES)
    (clone / "deepspeed" / "__init__.py").write_text("raise ImportError('the clone')")
    (installed / "deepspeed" / "__init__.py").touch()
    (information / "METADATA").write_text("Name: deepspeed\nVersion: 0.18.9\n")
    monkeypatch.setenv("DSFIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(environments, "installed", lambda release: installed)
    monkeypatch.setattr(processes.Session, "build", lambda self: None)
    with processes.Session(clone, "0.18.9", 3.0, 2) as opened:
        yield opened


def test_each_outcome_is_reported_and_the_other_tests_continue(session):
    """Two tests end the process: one kills it, one hangs."""
    tests = [f"{ENGINE}::test_{name}" for name in EXPECTED]
    ended = {each.test.rpartition("_")[2]: each for each in session.run("with", tests)}
    assert {name: each.outcome for name, each in ended.items()} == EXPECTED
    assert ended["without"].detail == "AssertionError"
    assert ended["skips"].detail == "no device"
    assert ended["raises"].detail == "ValueError: in file.py at …"


class Engine:
    """Replaces a session: outcomes has each test's outcome without and with dsfix."""

    versions: ClassVar = {"deepspeed": "0.18.9"}

    def __init__(self, **outcomes):
        self.outcomes = outcomes

    def build(self):
        pass

    def run(self, variant, tests, left_out=()):
        for test in tests:
            seen = self.outcomes[test][variant == "with"]
            yield processes.Ended(test, seen, "" if seen == "passed" else "ValueError")


def test_worse_tests_are_repeated_on_both_sides(tmp_path, records_in):
    records_in(records, tmp_path / "records")
    record = Record("0.18.9", "v0.18.9")
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
def test_worse(without, patched, worse):
    assert Run([without], [patched]).worse is worse
    assert not Run([without, patched], [patched]).worse


def test_a_worse_test_needs_an_explanation():
    worse = Record("0.18.9", "v0.18.9", runs={"unit/a.py::b[1]": Run(["passed"] * 3, ["failed"] * 3)})
    assert len(list(docs.faults([worse], (), ()))) == 1
    explained = Explanation("unit/a.py::b", "<0.19", Kind.ASSERTS_BUG, "because")
    assert list(docs.faults([worse], (explained,), ())) == []
    assert "asserts the bug: because" in docs.render([worse], (explained,), ())


def test_nothing_is_worse_without_an_explanation():
    assert list(docs.faults(records.load_all(), EXPLANATIONS, FIXES)) == []
