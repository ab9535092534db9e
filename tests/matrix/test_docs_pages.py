"""The generated pages, from made-up records."""

import argparse
import dataclasses
import importlib.util
import sys

import pytest

from dsfix.catalogue.registry import Entry
from matrix import docs, fingerprints, proofs
from matrix.pages import evidence
from matrix.proofs import Cell, Run
from matrix.site import bugs
from matrix.table import Environment, Release, Table

RELEASES = ("0.13.4", "0.13.5", "0.14.0", "0.14.1", "0.14.2", "0.14.3")
OLD = "torch-2.3.1"
NEW = "torch-2.13.0"
GPU = f"{NEW} on NVIDIA H200"
PATCH = '''
"""Title.

Why: with `offload` the <norm> is a __tensor__,
    and *not* a number: another.
How: moves it.
Workaround: None in the script; see https://github.com/deepspeedai/DeepSpeed/issues/1_2_3.
"""
from dsfix.patch import Patch, Provide, Severity

PATCH = Patch(
    title="{title}",
    severity=Severity.{severity},
    affects={{"deepspeed": "{affects}", "torch": ">=2.4"}},
    changes=(Provide("torch", "name", lambda module: None),),
    symptom=r"a | `b` <c>",
    upstream={{
        "https://github.com/deepspeedai/DeepSpeed/issues/1_2_3": "reported",
        "https://github.com/deepspeedai/DeepSpeed/issues/1": "reported",
    }},
    fixed_in="0.14.3",
)
'''

WHOLE = {"docs/patches.md", "dsfix/catalogue/day.py", "dsfix/catalogue/index.json"}
COUNTED = {
    "README.md": "Of 0 bugs, 0 are in DeepSpeed 0.1, 0 of these 0 give wrong results; it shows that 0 patches apply, "
    "which is 0 % of all pairs",
    "CHANGELOG.md": "- 0 bugs of DeepSpeed",
}
EARLIER = fingerprints.Fingerprint("before", "before")


@pytest.fixture
def table():
    environments = {
        NEW: Environment(NEW, "3.11", {"torch": "2.13.0", "numpy": "2.4.6"}),
        OLD: Environment(OLD, "3.11", {"torch": "2.3.1", "numpy": "1.26.4"}, until="0.14.0"),
    }
    releases = tuple(Release(each, "2024-05-01", {}, ("3.11",), False) for each in RELEASES)
    return Table(environments, releases)


@pytest.fixture
def write_patch(tmp_path, monkeypatch):
    # a patch rewritten within a second with the same length would be read from stale bytecode
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(patch_id, severity="CRASH", affects=">=0.14.1,<0.14.3", title="a | <b> __c__"):
        path = tmp_path / f"{patch_id}.py"
        path.write_text(PATCH.format(severity=severity, affects=affects, title=title))
        name = f"patches.area.{patch_id}"
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return Entry(patch_id, module.PATCH, module)

    return write


def seen(entry, column, release, without=None, patched="no-bug", detail="", **versions):
    """The cell of a correct patch, with these deviations."""
    versions = {
        "deepspeed": release,
        "torch": "2.3.1" if column == OLD else "2.13.0+cpu",
        "numpy": "1.26.4" if column == OLD else "2.4.6",
        "python": "3.11.7",
        **versions,
    }
    inside = proofs.inside(entry.patch, versions)
    return Cell(
        without=Run(without or ("bug" if inside else "no-bug"), "disabled", f"without: {release} {detail}"),
        patched=Run(patched, "applied" if inside else "not-affected", f"with: {release} {detail}"),
        versions=versions,
        device="NVIDIA H200" if column == GPU else "emulated CUDA device",
        preloaded=column != GPU,
        date="2026-11-21",
    )


@pytest.fixture
def record(table, tmp_path):
    """Records every cell of the patch; `cells` replaces or (None) removes some."""
    directory = tmp_path / "proofs"

    def save(entry, cells=(), gpu=()):
        results = proofs.Record(fingerprints.of(entry))
        for column in (NEW, OLD):
            releases = [each.deepspeed for each in table.run_in(column)]
            results.cells[column] = {each: seen(entry, column, each) for each in releases}
        if gpu:
            results.cells[GPU] = {each: seen(entry, GPU, each) for each in gpu}
        for (column, release), cell in dict(cells).items():
            if cell is None:
                del results.cells[column][release]
            else:
                results.cells[column][release] = cell
        proofs.save(entry, results, directory)
        return directory

    return save


@pytest.fixture
def render(table, tmp_path):
    """Renders the site's pages of these patches, one after the other."""

    def call(*entries):
        found = evidence.collect(entries, table, tmp_path / "proofs")
        return "\n".join(bugs.render(each, found, [], None, "") for each in found.entries)

    return call


def test_the_page_of_a_bug_gives_the_range_as_proven(write_patch, record, render):
    entry = write_patch("clip")
    record(entry, {(OLD, "0.13.5"): None}, gpu=["0.14.1"])
    page, other = render(write_patch("another", "LEAK"), entry).split("orphan: true")[1:]
    assert "\n# a | \\<b> \\_\\_c\\_\\_\n".replace("|", "\\|") in page
    assert "DeepSpeed 0.14.1, 0.14.2 · with torch >=2.4\n" in page
    assert f"- {NEW}: fixed on 0.14.1, 0.14.2; no bug on the other 4\n" in page
    assert f"- {GPU}: fixed on 0.14.1\n" in page
    assert f"- {OLD}: no bug on 0.13.4, 0.14.0; not run on 0.13.5\n" in page
    assert "Seen on 0.14.2 without the patch: without: 0.14.2. With it: with: 0.14.2.\n" in " ".join(page.split(" "))
    assert f"- {NEW}: not run on 0.13.4 to 0.14.3\n" in other
    assert GPU not in other
    assert "Seen on" not in other
    assert "The log matches ``a | `b` <c>``.\n" in page
    why = "With `offload` the \\<norm> is a \\_\\_tensor\\_\\_, and \\*not\\* a number: [another](another.md).\n"
    assert f"## Why\n\n{why}" in page
    assert "## Workaround\n\nNone in the script; see https://github.com/deepspeedai/DeepSpeed/issues/1_2_3.\n" in page
    assert "- [#1_2_3](https://github.com/deepspeedai/DeepSpeed/issues/1_2_3): reported\n" in page


@pytest.fixture
def check(write_patch, record, table, tmp_path, monkeypatch, capsys):
    """Writes the pages of one patch; the result runs `docs --check` and returns its status and messages."""
    entry = write_patch("clip")
    monkeypatch.setattr(docs, "CHECKOUT", tmp_path / "checkout")
    (tmp_path / "checkout").mkdir()
    for name, page in COUNTED.items():
        (tmp_path / "checkout" / name).write_text(page, encoding="utf-8")
    monkeypatch.setattr(proofs, "DIRECTORY", record(entry))
    monkeypatch.setattr("matrix.table.load", lambda: table)
    monkeypatch.setattr("matrix.bystanders.docs.faults", lambda found: [])
    loaded = {"clip": entry}
    monkeypatch.setattr("dsfix.catalogue.registry.load", lambda: (loaded, ()))
    assert docs.run(argparse.Namespace(check=False)) == 0
    written = {line.partition(" ")[0] for line in capsys.readouterr().out.splitlines() if line.endswith(" written")}
    assert written == WHOLE | COUNTED.keys()

    def run(**entries):
        loaded.update(entries)
        status = docs.run(argparse.Namespace(check=True))
        return status, capsys.readouterr().err.splitlines()

    return run


def test_a_file_that_was_edited_or_removed_is_named(check, tmp_path):
    page = tmp_path / "checkout" / "docs" / "patches.md"
    page.write_text(page.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert check() == (1, ["docs/patches.md is stale: `python -m tox run -e pages` writes it"])
    page.unlink()
    assert check() == (1, ["docs/patches.md is missing: `python -m tox run -e pages` writes it"])


@pytest.mark.parametrize(
    ("cells", "fault"),
    [
        (
            {(NEW, "0.13.4"): None, (NEW, "0.13.5"): None, (OLD, "0.13.5"): None},  # the nearest; no other column
            f"clip, {NEW}: not run with this version of the patch on 0.13.5: `python -m tox run -e matrix` runs it",
        ),
        ({(NEW, "0.14.3"): {"without": "bug"}}, f"clip on 0.14.3, {NEW}: the bug occurs outside the claimed range"),
        (
            {(NEW, "0.14.3"): {"numpy": "2.4.5"}},
            f"clip was run in {NEW} with numpy 2.4.5, but the table has 2.4.6: "
            "`python -m tox run -e matrix -- --patch clip --again` runs it again",
        ),
    ],
)
def test_a_cell_that_is_missing_or_wrong_is_named(check, record, write_patch, cells, fault):
    entry = write_patch("clip")
    record(entry, {key: each and seen(entry, *key, **each) for key, each in cells.items()})
    status, said = check()
    assert (status, said[0]) == (1, fault)
    assert docs.run(argparse.Namespace(check=False)) == 0  # which also names it
    assert check() == (1, [fault, fault])


def test_one_column_is_enough_for_a_release_and_a_gpu_may_lack_cells(check, record, write_patch):
    entry = write_patch("clip")
    unseen = {(OLD, each): seen(entry, OLD, each, "cannot-tell", "cannot-tell") for each in ("0.14.1", "0.14.2")}
    record(entry, unseen, gpu=["0.14.1"])
    assert docs.run(argparse.Namespace(check=False)) == 0
    assert check() == (0, [])


def test_after_a_change_the_edges_have_to_be_run_again_and_other_cells_are_marked(check, record, render, write_patch):
    entry = write_patch("clip", affects=">=0.13.4,<0.14.3")
    cells = {each: seen(entry, NEW, each) for each in RELEASES}
    old = {(NEW, each): dataclasses.replace(cells[each], earlier=EARLIER) for each in ("0.14.0", "0.14.1")}
    record(entry, old)
    assert not any("not run" in each for each in check(clip=entry)[1])
    assert docs.run(argparse.Namespace(check=False)) == 0
    page = render(entry)
    assert "run with an earlier version of the patch on 0.14.0, 0.14.1" in page
    record(entry, {(NEW, "0.13.5"): dataclasses.replace(cells["0.13.5"], earlier=EARLIER)})
    assert check()[1][0].startswith(f"clip, {NEW}: not run with this version of the patch on 0.13.5: ")


def test_a_patch_without_a_fixed_cell_is_named(check, record, write_patch):
    entry = write_patch("clip")
    columns = [(column, release) for column in (NEW, OLD) for release in ("0.14.1", "0.14.2")]
    record(entry, {(column, each): seen(entry, column, each, "cannot-tell", "cannot-tell") for column, each in columns})
    assert "clip: no column shows that it fixes the bug on 0.14.1, 0.14.2" in check()[1]


def test_a_changed_patch_and_its_cells_are_named(check, write_patch):
    status, said = check(clip=write_patch("clip", affects=">=0.14.1,<=0.14.2"))
    assert status == 1
    assert said[0].startswith(f"clip, {NEW}: not run with this version of the patch on 0.14.0 to 0.14.3")


def test_a_record_of_no_patch_is_named(check, tmp_path):
    record = tmp_path / "proofs" / "area.txt"
    record.write_text(record.read_text().replace("[clip]", "[gone]\n\n[clip]"))
    said = "matrix/proofs/area.txt: [gone] is no patch of this area: delete the section"
    assert check() == (1, [said])


def test_what_is_committed_is_not_stale(capsys):
    assert docs.run(argparse.Namespace(check=True)) == 0, capsys.readouterr().err
