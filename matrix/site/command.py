"""`site`: build the documentation site."""

from __future__ import annotations

import argparse
import functools
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from dsfix.catalogue import registry
from dsfix.cli.exits import OK, TROUBLE
from dsfix.explain import signature
from dsfix.known_bugs import coverage
from dsfix.known_bugs import table as known_bugs
from dsfix.known_bugs.coverage import Bug
from matrix import table
from matrix.bystanders import docs as bystanders
from matrix.bystanders import records as bystanders_records
from matrix.deepspeed_tests import docs as deepspeed_tests
from matrix.deepspeed_tests import records as deepspeed_tests_records
from matrix.pages import evidence
from matrix.parts import docs as parts
from matrix.parts import record as parts_record
from matrix.sdists import Index
from matrix.site import bugs, diffs, guides, index, known, links, samples, start

NAME = "site"
HELP = "build the documentation site: the guides, a page for each bug, and the search"
CHECKOUT = Path(__file__).resolve().parents[2]
_SPHINX = Path(__file__).with_name("sphinx")
_TRACEBACKS = CHECKOUT / "tests" / "explain" / "tracebacks" / "patches.txt"  # of real runs


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--into", type=Path, default=CHECKOUT / "site", metavar="DIR", help="default: site")


def run(options: argparse.Namespace) -> int:
    """0 if Sphinx has no warning and every link leads somewhere. Raises CommandError."""
    source = CHECKOUT / "build" / "site"
    shutil.rmtree(source, ignore_errors=True)
    shutil.rmtree(options.into, ignore_errors=True)
    shutil.copytree(_SPHINX, source)
    for name, text in _pages():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-n", "-q", "-j", "auto"]
    done = subprocess.run([*command, "-d", f"{source}.doctrees", str(source), str(options.into)], check=False)
    if done.returncode != 0:
        return TROUBLE
    faults = list(links.faults(options.into))
    print("\n".join(faults) or f"{options.into}: open {options.into / 'index.html'}")
    return TROUBLE if faults else OK


def _pages() -> Iterator[tuple[str, str]]:
    """Path in Sphinx's source folder and text of all that is written for it. Raises CommandError."""
    sdists, catalogue, all_ = Index(), registry.catalogue(), known_bugs.load()
    proof = evidence.collect(catalogue.values(), table.load())
    jobs = bystanders_records.load_all()
    signatures = {each.id: each for each in signature.load()}
    torch = bugs.torch_versions(proof)
    seen, searched = _seen(), []
    changes, missing = diffs.made({each.id: bugs.claimed(each, proof.releases)[-1] for each in proof.entries}, sdists)
    if missing:
        print(f"Some pages have no diff: {missing}.")
    for entry in proof.entries:
        own = [bug for bug in rows() if entry.id in (cover.id for cover in bug.covers)]
        naming = [each for each in signatures.values() if entry.id in each.patches]
        error = seen.get(entry.id, "")
        yield f"bugs/{entry.id}.md", bugs.render(entry, proof, jobs, changes.get(entry.id), error)
        searched.append(index.of_patch(entry, error, own, naming, all_, torch))
    for bug in rows():
        if bug.row.key.startswith("patch/"):
            continue  # the table has no row for it
        yield f"bugs/{known.name(bug)}.md", known.of_row(bug, all_, signatures, torch)
        if not bug.covers:
            searched.append(index.of_row(bug, all_, torch))
    for each in signatures.values():
        of_it = [bug for bug in rows() if ("explain", each.id) in bug.row.states]
        yield f"messages/{each.id}.md", known.of_signature(each, of_it)
        searched.append(index.of_signature(each, all_, torch))
    yield "bugs/without-patch.md", known.listing(rows(), all_)
    yield "results/bystanders.md", bystanders.render(jobs)
    yield "results/parts.md", parts.render(parts_record.load())
    yield "results/deepspeed-tests.md", deepspeed_tests.render(deepspeed_tests_records.load_all())
    for name, text in guides.pages(CHECKOUT, sdists, samples.by_tests(CHECKOUT)):
        yield name, text
        if guides.searched(name):
            searched += index.of_guide(name, text)
    yield "index.md", start.render(proof.releases, torch, searched)
    yield "_static/known.js", index.written(searched, proof.releases, torch)


@functools.cache
def rows() -> tuple[Bug, ...]:
    """All known bugs."""
    return coverage.bugs(known_bugs.load(), registry.catalogue())


def _seen() -> dict[str, str]:
    """Id -> the error that a real run of its reproduction ended with; of a long message, the first lines."""
    plain = re.sub(r"^\[rank\d+\]: |\x1b\[\d*m", "", _TRACEBACKS.read_text(encoding="utf-8"), flags=re.M)
    records = re.split(r"^=== (\S+)-[\d.]+\n", plain, flags=re.M)[1:]
    messages = (re.split(r"^(?=[\w.]+(?:Error|Exit)\b)", text, flags=re.M)[-1] for text in records[1::2])
    return {name: "\n".join(message.splitlines()[:6]) for name, message in zip(records[::2], messages)}
