"""The source proof, on stand-in releases with a stand-in catalogue: each kind of wrong claim is reported."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

from matrix import table
from tests.processes import ended

HIDDEN = "on {}, {} its range with its number hidden, it is {}"
INNER = "0.0.1, 0.0.2"  # the releases with the bug
SCALES = {"0.0.0": "1", "0.0.1": "self.limit", "0.0.2": "self.limit", "0.1.0": "float(self.limit)", "0.2.0": "2.0"}
ENGINE = '''
"""def step_of_old(): no definition"""

class Engine:
    limit = 1
    if limit:
        def checked(self):
            return self.limit

    def step(self, loss):
        scale = {}
        return loss * scale
'''
PATCH = '''
"""For the test."""
{before}
from dsfix.patch import Edit, Patch, Provide, Replace, Severity, Source

STEP, CHECKED = "deepspeed.engine:Engine.step", "deepspeed.engine:Engine.checked"

def step(code):
    return Edit(STEP, replace="scale = self.limit", code=code)

declared = dict(
    title="x", severity=Severity.CRASH, symptom="x", upstream=(), affects={{"deepspeed": ">=0.0.1,<0.1"}},
    changes=(step("scale = float(self.limit)"),), fixed_in="0.1.0",
    fixed=(Source(STEP, "scale = 1"), Source(STEP, "scale = 2.0"), Source(STEP, "scale = float(self.limit)")),
)
everywhere = dict(
    affects={{"deepspeed": ">=0.0"}}, fixed_in=None, fixed=(),
    changes=(Replace(CHECKED, print), Edit(CHECKED, before="return self.limit", code="pass")),
)
PATCH = Patch(**{{**declared, **dict({options})}})
'''
IMPORT = """
import os, sys
if "IMPORT" in os.environ and "verdicts" in sys.argv[0]:
    import deepspeed
"""
# patch id -> what it declares differently, and the start of each sentence that the proof must report
CASES = {
    "right": ("", []),
    "right_and_off_by_default": ("default=False", []),
    "right_everywhere": ("**everywhere", []),
    "right_for_another_torch": ("affects={'deepspeed': '>=0.0.1,<0.1', 'torch': '<1'}", []),
    "range_begins_too_early": (
        "affects={'deepspeed': '>=0.0,<0.1'}",
        ["on 0.0.0, inside its range, it is already-fixed", HIDDEN.format("0.0.0", "inside", "already-fixed")],
    ),
    "range_ends_too_early": (
        "affects={'deepspeed': '>=0.0.1,<0.0.2'}, fixed_in='0.0.2'",
        [
            HIDDEN.format("0.0.2", "outside", "pending"),
            "on 0.0.2, which fixed it, with its number hidden, it is pending",
        ],
    ),
    "range_is_empty": (
        "affects={'deepspeed': '>=3'}",
        [HIDDEN.format(INNER, "outside", "pending"), "its range contains no release of the table"],
    ),
    "fix_is_not_recognised": (
        "changes=(Edit(STEP, after='scale = self.limit', code='scale *= 0.0'),), fixed=()",
        ["on 0.1.0, which fixed it, with its number hidden, it is not-affected"],
    ),
    "fixed_in_is_not_given": ("fixed_in=None", ["fixed_in is None, but the first release after its range is 0.1.0"]),
    "continues_nowhere": (
        "fixed_in=None, continued_by='continues_nowhere'",
        ["continues_nowhere should continue it, but is not a patch for 0.1.0"],
    ),
    "continues_though_fixed": ("continued_by='right'", ["fixed_in is 0.1.0, but right continues it"]),
    "fixed_in_is_to_come": (
        "**{**everywhere, 'fixed_in': '2.0'}",
        ["fixed_in is 2.0, but its range contains the newest release, 0.2.0"],
    ),
    "no_evidence": ("changes=(Replace(CHECKED, print),)", [HIDDEN.format(INNER, "inside", "not-affected")]),
    "another_kind_of_function": (
        "changes=(step('scale = yield'),)",
        [f"on {INNER}: Edit of Engine.step: the edit would turn Engine.step into a different kind of function"],
    ),
    "does_not_compile": ("changes=(step('break'),)", [f"on {INNER}: Edit of Engine.step: 'break' outside loop"]),
    "is_no_python": (
        "changes=(step('scale ='),)",
        [
            f"on {INNER}, inside its range, it is failed: SyntaxError: invalid syntax (<unknown>, line 1) in `scale =`",
            HIDDEN.format(INNER, "inside", "failed"),
        ],
    ),
    "targets_that_are_not_there": (
        "changes=(*declared['changes'], Replace('deepspeed.engine:step_of_old', print),"
        "Provide('deepspeed.nothing', 'x', print), Provide('deepspeed.engine', 'Engine', print))",
        [
            f"on {INNER}: {what}"
            for what in (
                "deepspeed.engine has no step_of_old",
                "module deepspeed.nothing does not exist",
                "deepspeed.engine already has Engine",
            )
        ],
    ),
}


@pytest.fixture(scope="module")
def proof(tmp_path_factory, dsfix_in):
    """`python -m matrix source` with those releases and patches, and an index that does not respond."""
    root = tmp_path_factory.mktemp("root")
    patches = dsfix_in(root)
    sources = {name: PATCH.format(before="", options=options) for name, (options, _) in CASES.items()}
    sources["imports_deepspeed"] = PATCH.format(before=IMPORT, options="")
    for name, text in sources.items():
        (patches / f"{name}.py").write_text(text)
    for release, scale in SCALES.items():
        package = root / "cache" / "sdists" / release / "deepspeed"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "engine.py").write_text(ENGINE.format(scale))
        record = package.parent / "deepspeed.egg-info"
        record.mkdir()
        (record / "PKG-INFO").write_text(f"Metadata-Version: 2.1\nName: deepspeed\nVersion: {release}\n")
    row = {"released": "", "requires": {}, "pythons": [], "sampled": False}
    for name, releases in (("releases", SCALES), ("more", [*SCALES, "0.3.0"])):
        rows = [{"deepspeed": each, **row} for each in releases]
        table_of_these = {"environments": {"here": {"python": "3.11", "torch": "9"}}, "releases": rows}
        (root / f"{name}.json").write_text(json.dumps(table_of_these))

    def run(*arguments, releases="releases", **variables):
        code = f"""
import argparse, functools, sys
sys.path.insert(0, {str(Path(table.__file__).parents[1])!r})
from matrix import source_proof as source, table
table.load = functools.partial(table.load, table.Path({str(root / releases)!r} + ".json"))
source.PROVEN = table.Path({variables.get("PROVEN", str(root / "proven.txt"))!r})
parser = argparse.ArgumentParser()
source.add_arguments(parser)
try:
    sys.exit(source.run(parser.parse_args()))
except source.CommandError as complaint:
    print(complaint)
    sys.exit(complaint.status)
"""
        fixed = {"PIP_INDEX_URL": "http://127.0.0.1:1/", "NO_PROXY": "127.0.0.1", "COLUMNS": "120"}
        environment = {**os.environ, **fixed, **variables, "DSFIX_CACHE": str(root / "cache"), "PYTHONPATH": str(root)}
        return ended([sys.executable, "-c", code, *arguments], None, environment)

    return run


@pytest.fixture(scope="module")
def lines(proof):
    """The output for all patches, without conflicts between them, which another test covers."""
    done = proof("--patch", *CASES)
    assert done.returncode == 1, done.stderr
    return [line for line in done.stdout.splitlines() if ": together with " not in line]


@pytest.mark.parametrize("patch_id", CASES)
def test_each_wrong_claim_is_one_sentence(lines, patch_id):
    mine = [line.removeprefix(f"{patch_id}: ") for line in lines if line.startswith(f"{patch_id}: ")]
    expected = CASES[patch_id][1]
    for each in expected:
        assert sum(line.startswith(each) for line in mine) == 1, mine
    assert len(mine) == len(expected), mine


def test_what_was_proven_is_kept_for_the_jobs(proof, tmp_path):
    """A digest per patch and text of its module: equal for 0.0.1 and 0.0.2, and for every release of the other."""
    written = tmp_path / "proven.txt"
    assert proof("--patch", "right", "--check", PROVEN=str(written)).returncode == 1
    assert not written.exists()
    assert proof("--patch", "right", "right_everywhere", PROVEN=str(written)).returncode == 0
    right, everywhere = (line.split() for line in written.read_text().splitlines())
    assert (right[0], len(right), everywhere[0], len(everywhere)) == ("right", 2, "right_everywhere", 5)
    assert proof("--patch", "right", "--check", PROVEN=str(written)).returncode == 0
    written.write_text(written.read_text().replace(right[1], "0" * 16))
    done = proof("--patch", "right", "--check", PROVEN=str(written))
    assert "proven.txt is stale" in done.stdout
    assert done.returncode == 1


def test_patches_that_change_the_same_code_are_named(proof):
    done = proof("--patch", "right", "right_and_off_by_default", "--release", "0.0.1")
    for one, other in (("right", "right_and_off_by_default"), ("right_and_off_by_default", "right")):
        assert re.search(
            rf"^{one}: on 0\.0\.1: together with {other}: .* change the same statement$", done.stdout, re.M
        )
    assert done.returncode == 1


def test_an_unavailable_release_affects_only_its_own_cells(proof):
    done = proof("--patch", "right", releases="more")
    assert "deepspeed 0.3.0 was not checked: the package index is not available" in done.stdout
    assert "releases: 5, cells: 5, mismatches: 0" in done.stdout
    assert done.returncode == 1


def test_a_patch_that_imports_deepspeed_fails_the_source_proof(proof):
    done = proof("--patch", "imports_deepspeed", "--release", "0.0.1", IMPORT="1")
    assert "deepspeed was imported" in done.stdout
    assert done.returncode == 2
