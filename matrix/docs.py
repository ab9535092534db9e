"""`docs`: generate the committed files that derive from the catalogue, the release table and the records."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from dsfix.catalogue import registry
from dsfix.catalogue.registry import Entry
from dsfix.cli.exits import CommandError
from matrix import proofs, table
from matrix.bystanders import docs as bystanders
from matrix.bystanders import records
from matrix.edges import claimed_and_neighbours, required
from matrix.pages import evidence, patches
from matrix.pages.evidence import Column, Evidence
from matrix.proofs import State

NAME = "docs"
HELP = "write docs/patches.md, dsfix/catalogue's day.py and index.json, and the counts in README.md and CHANGELOG.md"
CHECKOUT = Path(__file__).resolve().parents[1]
_COMMAND = "python -m tox run -e pages"
_DAY = '''"""Written by `python -m matrix docs`."""

PROVEN_ON = "{}"  # the day of the latest run of a reproduction in the record
'''


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--check",
        action="store_true",
        help="write nothing; exit status 1 if a committed file is stale, or a cell or bystander is missing",
    )


def run(options: argparse.Namespace) -> int:
    """0 unless --check finds a fault or a stale page."""
    entries, broken = registry.load()
    proof = evidence.collect(entries.values(), table.load(), proofs.DIRECTORY)
    complaints = [f"patch {each.id} cannot be loaded and is on no page: {each.reason}" for each in broken]
    complaints += faults(proof, proofs.DIRECTORY)
    if options.check:
        complaints += stale(committed(proof), CHECKOUT)
        complaints += bystanders.faults(records.load_all())
    else:
        write(committed(proof), CHECKOUT)
    print(patches.reproduced(proof))
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    return 1 if complaints and options.check else 0


def committed(found: Evidence) -> dict[str, str]:
    """Path in the checkout -> text, for each committed file."""
    dates = {cell.date for column in found.columns for cell in found.ran(column)}
    return {
        "docs/patches.md": patches.render(found),
        "dsfix/catalogue/day.py": _DAY.format(max(dates, default="")),
        "dsfix/catalogue/index.json": index(),
        **counted(found, CHECKOUT),
    }


def counted(found: Evidence, checkout: Path) -> dict[str, str]:
    """README.md and CHANGELOG.md with the numbers of today's patches. Raises CommandError: a sentence is missing."""
    total, newest, release = len(found.entries), patches.newest(found), found.releases[-1]
    sentences = {
        "README.md": (
            f"Of {total} bugs, {len(newest)} are in DeepSpeed {release}",
            f"{patches.wrong(newest)} of these {len(newest)} give wrong results",
            f"shows that {sum(each.default for each in newest)} patches apply",
            f"which is {100 - patches.share(found)} % of all pairs",
        ),
        "CHANGELOG.md": (f"{total} bugs of DeepSpeed",),
    }
    pages = {}
    for name, known in sentences.items():
        pages[name] = (checkout / name).read_text(encoding="utf-8")
        for sentence in known:
            pattern = re.sub(r"\d+(\\\.\d+)*", r"[\\d.]+", re.escape(sentence))
            pages[name], count = re.subn(pattern, sentence, pages[name])
            if count != 1:
                raise CommandError(f"{name} must contain this exactly once, on one line: {sentence}")
    return pages


def index() -> str:
    """The index: what a job needs to know about a patch without importing it; one per line."""
    shipped = registry.index_contents()
    return table.lines({**shipped, "summaries": shipped["summaries"] or ()}, "summaries")


def write(files: Mapping[str, str], checkout: Path) -> None:
    """Write the files, and print those that have changed."""
    for name, content in files.items():
        path = checkout / name
        if not path.is_file() or path.read_text(encoding="utf-8") != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
            print(f"{name} written")


def stale(files: Mapping[str, str], checkout: Path) -> list[str]:
    """One sentence for each file that is missing or stale."""
    complaints = []
    for name, content in files.items():
        path = checkout / name
        if not path.is_file():
            complaints.append(f"{name} is missing: `{_COMMAND}` writes it")
        elif path.read_text(encoding="utf-8") != content:
            complaints.append(f"{name} is stale: `{_COMMAND}` writes it")
    return complaints


def faults(found: Evidence, directory: Path) -> list[str]:
    """One sentence for each reason why the records do not prove the patches' ranges."""
    ids = {(entry.area, entry.id) for entry in found.entries}
    complaints = [
        f"matrix/proofs/{path.name}: [{patch_id}] is no patch of this area: delete the section"
        for path in sorted(directory.glob("*.txt"))
        for patch_id in proofs.sections(path)
        if (path.stem, patch_id) not in ids
    ]
    for entry in found.entries:
        for number, column in enumerate(found.columns):
            complaints += _faults(found, entry, column, needed=number == 0)
        complaints += _unproven(found, entry)
    return complaints


def _unproven(found: Evidence, entry: Entry) -> list[str]:
    """A sentence about claimed releases on which no column shows that the patch fixes the bug."""
    columns = found.cells[entry.id].values()
    fixed = {release for cells in columns for release, judged in cells.items() if judged.state is State.FIXED}
    lacking = [each for each in found.releases if entry.patch.claims(each) and each not in fixed]
    if not lacking:
        return []
    return [f"{entry.id}: no column shows that it fixes the bug on {table.span(lacking, found.releases)}"]


def _faults(found: Evidence, entry: Entry, column: Column, needed: bool) -> list[str]:
    """What is wrong in one column. needed: whether it must have all cells near the patch's range."""
    patch_id = entry.id
    cells = found.cells[patch_id][column.name]
    complaints = [
        f"{patch_id} on {release}, {column.name}: {judged.why}"
        for release, judged in cells.items()
        if judged.state is State.WRONG
    ]
    close, anew = (
        (each(entry.patch, column.environment, column.releases) for each in (claimed_and_neighbours, required))
        if needed
        else ((), ())
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
        f"{patch_id} was run in {column.name} with {name} {version}, but the table has "
        f"{column.environment.distributions[name]}: `{column.command} -- --patch {patch_id} --again` runs it again"
        for name, version in sorted(others)
    ]
    return complaints
