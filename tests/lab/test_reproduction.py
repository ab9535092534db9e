"""Running reproductions on ranks, with a stand-in catalogue; for one rank see tests/cli/test_verify.py."""

import pytest

PATCH = '''
"""A bug of the standard library, for the test."""
import json, os, signal
from dsfix.patch import BugPresent, CannotTell, Patch, Provide, Severity

PATCH = Patch(
    title="no name", severity=Severity.CRASH, affects={{"packaging": ">=1"}}, symptom="x", upstream={{}}, fixed_in=None,
    changes=(Provide("json", {name!r}, lambda module: 1),), {options}
)

def reproduce(lab):
    missing = not hasattr(json, {name!r})
    {body}
    return "the name is there"
'''
BUG = "if missing: raise BugPresent('the name is missing')"
PATCHES = {
    "missing_name": (BUG, ""),
    "one_rank_sees_it": ("raise BugPresent('seen on rank 1') if lab.rank == 1 else RuntimeError('no peer')", "ranks=2"),
    "asks_for_the_schedule": ("return os.environ.get('DSFIX_LAB_SCHEDULE', 'none')", ""),
    "one_rank_waits": ("signal.pause() if lab.rank == 0 else os._exit(3)", "ranks=2"),
}
RUN = """
import json, sys
from dsfix.lab.reproduction import run
sighting = run(sys.argv[1], patched=sys.argv[2] == "patched", timeout=float(sys.argv[3]))
print(json.dumps([sighting.outcome, sighting.detail, sighting.seconds]))
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory, dsfix_in):
    directory = tmp_path_factory.mktemp("root")
    patches = dsfix_in(directory)
    for name, (body, options) in PATCHES.items():
        (patches / f"{name}.py").write_text(PATCH.format(name=name, body=body, options=options))
    return directory


@pytest.fixture(scope="module")
def sight(answer, root):
    def run(patch_id, how="unpatched"):
        outcome, detail, seconds = answer(RUN, patch_id, how, "60", PYTHONPATH=str(root))
        assert seconds > 0
        return outcome, detail

    return run


def test_the_rank_that_sees_the_bug_decides(sight):
    assert sight("one_rank_sees_it") == ("bug", "seen on rank 1")


def test_the_rank_that_fails_decides_not_the_one_that_waits(sight):
    outcome, detail = sight("one_rank_waits")
    assert (outcome, detail.splitlines()[0]) == ("error", "rank 1 ended with exit status 3")


def test_a_schedule_reaches_the_ranks(answer, root):
    source = RUN.replace("float(sys.argv[3])", "60, schedule=sys.argv[3]")
    for schedule, seen in (("", "none"), ("random:4", "random:4")):
        results = answer(
            source, "asks_for_the_schedule", "patched", schedule, PYTHONPATH=str(root), DSFIX_LAB_SCHEDULE="x"
        )
        assert results[:2] == ["no-bug", seen]
