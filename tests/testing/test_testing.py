"""dsfix.testing: proofs of a plug-in's patches."""

import os
import subprocess
import sys
import textwrap
from xml.etree import ElementTree

import pytest

from tests.processes import ended

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the rank launcher runs on Linux"),
    pytest.mark.usefixtures("cold_cache"),
]


def run(directory, files, *options, **variables):
    """Runs pytest; returns name -> (outcome, message) of all tests, and the output."""
    for name, text in files.items():
        (directory / name).write_text(textwrap.dedent(text))
    (directory / "conftest.py").write_text('pytest_plugins = ["dsfix.testing"]\n')
    mine = ("DSFIX_", "_DSFIX_", "PYTEST_", "RANK", "WORLD_SIZE", "LOCAL_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(mine)}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--junitxml=found.xml", *options]
    done = ended(command, directory, {**environment, "PYTHONDONTWRITEBYTECODE": "1", **variables}, timeout=120)
    assert (directory / "found.xml").exists(), done.stdout + done.stderr
    results = {}
    for case in ElementTree.parse(directory / "found.xml").iter("testcase"):
        [outcome, message] = next(((each.tag, each.get("message", "")) for each in case), ("passed", ""))
        results[case.get("name")] = (outcome, message)
    return results, done.stdout + done.stderr


def test_a_distribution_without_patches_is_an_error(tmp_path):
    test = 'from dsfix.testing import patch_ids\nIDS = patch_ids("packaging")\n'
    _, output = run(tmp_path, {"test_none.py": test})
    assert "packaging is not installed, or has no entry point in the group dsfix.patches" in output


REPRODUCED = """
import json
from dsfix.patch import BugPresent, CannotTell, Patch, Provide, Severity

PATCH = Patch(
    title="no name", severity=Severity.CRASH, affects={{"packaging": "{affects}"}}, symptom="x", upstream={{}},
    fixed_in=None, changes=(Provide("json", "{name}", lambda module: 1),), device="cpu",
)

def reproduce(lab):
    {body}
"""
SEEN = """if not hasattr(json, __name__.rpartition('.')[2]):
        raise BugPresent('the name is missing')
    return 'the name is there'"""
PROOFS = {
    "fixes": ("passed", "", {}),
    "does_not_fix": ("failure", "acme:does_not_fix: not fixed", {"name": "another_name"}),
    "not_seen": ("failure", "acme:not_seen: not seen", {"body": "return 'nothing'"}),
    "bug_outside": ("failure", "acme:bug_outside: bug", {"affects": "<1"}),
    "no_bug_outside": ("passed", "", {"affects": "<1", "body": "return 'nothing'"}),
    "cannot_tell": ("skipped", "needs two GPUs", {"body": "raise CannotTell('needs two GPUs')"}),
    "another_bug": ("failure", "RuntimeError: another bug", {"body": "raise RuntimeError('another bug')"}),
    "no_reproduction": ("skipped", "its file has no reproduce(lab)", {}),
}


def test_a_proof_needs_the_bug_without_the_patch_and_not_with_it(tmp_path):
    package, information = tmp_path / "acme_patches", tmp_path / "acme-1.0.dist-info"
    for name, (_, _, given) in PROOFS.items():
        package.mkdir(exist_ok=True)
        text = REPRODUCED.format(**{"affects": ">=1", "name": name, "body": SEEN, **given})
        if name == "no_reproduction":
            text = text.partition("def reproduce")[0]
        (package / f"{name}.py").write_text(text)
    (package / "__init__.py").touch()
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[dsfix.patches]\npatches = acme_patches\n")
    test = """
        import pytest
        from dsfix.testing import patch_ids, prove

        @pytest.mark.parametrize("patch_id", patch_ids("ACME"))
        def test_proof(patch_id):
            prove(patch_id)
    """
    results, output = run(tmp_path, {"test_proofs.py": test}, PYTHONPATH=str(tmp_path))
    expected = {f"test_proof[acme:{name}]": outcome for name, (outcome, _, _) in PROOFS.items()}
    assert {name: outcome for name, (outcome, _) in results.items()} == expected, output
    for name, (_, words, _) in PROOFS.items():
        assert words in results[f"test_proof[acme:{name}]"][1]


def test_import_dsfix_needs_no_pytest():
    code = "import sys, dsfix, dsfix.lab; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
