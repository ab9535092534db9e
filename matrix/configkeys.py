"""`keys`: write dsfix/check/keys.json, the config keys that each release reads, from its source."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dsfix.check import extract, keys
from dsfix.cli.exits import OK, TROUBLE, CommandError
from matrix import table
from matrix.sdists import Index, Unavailable

NAME = "keys"
HELP = "write dsfix/check/keys.json: the config keys of every release, from its source"
PATH = Path(__file__).resolve().parents[1] / "dsfix" / "check" / "keys.json"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--check", action="store_true", help="write nothing; exit status 1 if the file is stale")


def run(options: argparse.Namespace) -> int:
    """0 unless --check finds the file stale. Raises CommandError."""
    try:
        text = generate([release.deepspeed for release in table.load().releases], Index().sources)
    except Unavailable as error:
        raise CommandError(str(error)) from None
    stale = not PATH.is_file() or PATH.read_text(encoding="utf-8") != text
    if not options.check:
        PATH.write_text(text, encoding="utf-8")
        print(f"{PATH.name} {'written' if stale else 'is unchanged'}")
        return OK
    print("keys.json is stale: `python -m tox run -e pages -- keys` writes it" if stale else "keys.json is up to date")
    return TROUBLE if stale else OK


def generate(releases: list[str], sources: Callable[[str], Path]) -> str:
    """The file's text; `sources` returns the directory that contains a release's package."""
    return as_file(
        {release: keys.flatten(extract.extract_keys(sources(release) / "deepspeed")) for release in releases}
    )


def as_file(releases: dict[str, dict[str, str]]) -> str:
    """The file's text, one line per key, so that diffs stay small."""
    return table.lines(merged(releases), "keys")


def merged(releases: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    spans: dict[str, list[list[str | None]]] = {}
    names = list(releases)
    for number, (release, flat) in enumerate(releases.items()):
        for path, what in flat.items():
            known = spans.setdefault(path, [])
            if known and known[-1][2] == what and known[-1][1] == names[number - 1]:
                known[-1][1] = release
            else:
                known.append([release, release, what])
    for known in spans.values():
        if known[-1][1] == names[-1]:
            known[-1][1] = None
    return {"releases": [names[0], names[-1]], "keys": dict(sorted(spans.items()))}
