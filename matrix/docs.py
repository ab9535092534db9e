"""`docs`: the pages that are generated from the catalogue, the table of releases and the record."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from packaging.specifiers import SpecifierSet

from dsfix.engine import registry
from dsfix.engine.registry import Entry
from matrix import proofs, table
from matrix.edges import near, required
from matrix.pages import catalogue, data, evidence, markdown, matrix_page
from matrix.pages.evidence import Column, Evidence
from matrix.proofs import State

NAME = "docs"
HELP = "write docs/catalogue.md, docs/matrix.md and docs/matrix/ from the table and what was run"
CHECKOUT = Path(__file__).resolve().parents[1]
_COMMAND = "python -m tox run -e docs"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--check", action="store_true", help="write nothing; exit status 1 where a page is stale or a cell is missing"
    )


def run(options: argparse.Namespace) -> int:
    entries, broken = registry.load()
    found = evidence.collect(entries.values(), table.load(), proofs.DIRECTORY)
    complaints = [f"patch {each.id} cannot be loaded and is on no page: {each.reason}" for each in broken]
    complaints += faults(found, proofs.DIRECTORY)
    if options.check:
        complaints += stale(found, CHECKOUT)
    else:
        write(found, CHECKOUT)
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    return 1 if complaints and options.check else 0


def generate(found: Evidence) -> dict[str, str]:
    """The path of each page in the checkout -> its text."""
    tree = data.tree(found)
    return {
        "docs/catalogue.md": catalogue.render(found),
        "docs/matrix.md": markdown.render(found),
        "docs/matrix/matrix.json": data.as_file(tree),
        "docs/matrix/index.html": matrix_page.render(tree),
    }


def write(found: Evidence, checkout: Path) -> None:
    """Write all pages, and name those that have changed."""
    for name, content in generate(found).items():
        path = checkout / name
        if not path.is_file() or path.read_text(encoding="utf-8") != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
            print(f"{name} written")


def stale(found: Evidence, checkout: Path) -> list[str]:
    """One sentence for each page that is not what `write` would write."""
    complaints = []
    for name, content in generate(found).items():
        path = checkout / name
        if not path.is_file():
            complaints.append(f"{name} is missing: `{_COMMAND}` writes it")
        elif path.read_text(encoding="utf-8") != content:
            complaints.append(f"{name} is not what the patches, the table and the record say: `{_COMMAND}` writes it")
    return complaints


def faults(found: Evidence, directory: Path) -> list[str]:
    """One sentence for each thing in the record, or missing there, that keeps it from proving the patches' ranges."""
    ids = {entry.id for entry in found.entries}
    complaints = [
        f"matrix/proofs/{path.name} is the record of no patch: delete it"
        for path in sorted(directory.glob("*.json"))
        if path.stem not in ids
    ]
    for entry in found.entries:
        for number, column in enumerate(found.columns):
            complaints += _faults(found, entry, column, needed=number == 0)
        complaints += _unproven(found, entry)
    return complaints


def _unproven(found: Evidence, entry: Entry) -> list[str]:
    """A release of DeepSpeed that the patch claims, on which no column shows the bug cured."""
    columns = found.cells[entry.id].values()
    cured = {release for cells in columns for release, judged in cells.items() if judged.state is State.CURED}
    claimed = SpecifierSet(entry.patch.affects.get("deepspeed", ""))
    lacking = [each for each in found.releases if claimed.contains(each) and each not in cured]
    if not lacking:
        return []
    return [f"{entry.id}: nowhere was the bug seen, and gone with the patch, on {table.span(lacking, found.releases)}"]


def _faults(found: Evidence, entry: Entry, column: Column, needed: bool) -> list[str]:
    """`needed`: all cells near the patch's range have to be there; in other columns, what tells something is run."""
    patch_id = entry.id
    cells = found.cells[patch_id][column.name]
    complaints = [
        f"{patch_id} on {release}, {column.name}: {judged.why}"
        for release, judged in cells.items()
        if judged.state is State.WRONG
    ]
    close, anew = (
        (each(entry.patch, column.environment, column.releases) for each in (near, required)) if needed else ((), ())
    )
    earlier = {release for release, judged in cells.items() if judged.cell is not None and judged.cell.earlier}
    missing = [
        release
        for release in column.releases
        if (release in close and cells[release].state is State.NOT_RUN) or (release in anew and release in earlier)
    ]
    if missing:
        on = table.span(missing, column.releases)
        complaints.append(
            f"{patch_id}, {column.name}: not run with this version of the patch on {on}: `{column.command}` runs it"
        )
    others = {
        (name, judged.cell.versions[name])
        for judged in cells.values()
        for name, version in column.environment.distributions.items()
        if judged.cell is not None and judged.cell.versions.get(name, "").partition("+")[0] not in ("", version)
    }
    complaints += [
        f"{patch_id} was run in {column.name} beside {name} {version}, and the table has "
        f"{column.environment.distributions[name]}: `{column.command} -- --patch {patch_id} --again` runs it again"
        for name, version in sorted(others)
    ]
    return complaints
