"""`tox`: write the releases of the table and the versions they are run with into tox.ini."""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from packaging.version import Version

from dsfix.cli.exits import OK, CommandError
from matrix import table

NAME = "tox"
HELP = "write the table's releases and the versions they are run with into tox.ini"
PATH = Path(__file__).parent.parent / "tox.ini"
_BEGIN = "# written by `python -m matrix tox`: {}"
_END = "# written up to here"


def add_arguments(command: argparse.ArgumentParser) -> None:
    pass


def run(options: argparse.Namespace) -> int:
    """Always 0. Raises CommandError."""
    PATH.write_text(updated(text(), table.load()), encoding="utf-8")
    print("tox.ini is up to date with matrix/releases.json.")
    return OK


def text() -> str:
    """The text of tox.ini. Raises CommandError if it cannot be read."""
    try:
        return PATH.read_text(encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{PATH} cannot be read: {error.strerror}") from None


def updated(text: str, releases: table.Table) -> str:
    """The text of tox.ini with its generated parts updated from the table. Raises CommandError if a part is missing."""
    for name, lines in _parts(releases):
        begin = _BEGIN.format(name)
        part = re.compile(rf"^([ ]*){re.escape(begin)}\n.*?^[ ]*{re.escape(_END)}$", re.M | re.S)
        match = part.search(text)
        if match is None:
            raise CommandError(f"tox.ini has no lines `{begin}` and `{_END}`")
        indented = [match[1] + line for line in (begin, *lines, _END)]
        text = text[: match.start()] + "\n".join(indented) + text[match.end() :]
    return text


def _parts(releases: table.Table) -> Iterator[tuple[str, list[str]]]:
    first, *others = releases.environments.values()
    install, tests = "python tests/install_deepspeed.py ds-", "pytest -n logical --dist loadfile tests/release"
    sampled = [release.deepspeed for release in releases.releases if release.sampled]
    yield "sampled releases", [line for each in sampled for line in (install + each, tests)]
    yield "versions", [f"{name} = {version}" for name, version in first.distributions.items()]
    yield "columns", list(_columns(first, [each for each in others if each.name == f"torch-{each.torch}"]))
    yield "all releases", [f"[testenv:{','.join(ranges('ds-', (release.version for release in releases.releases)))}]"]


def _columns(first: table.Environment, environments: Sequence[table.Environment]) -> Iterator[str]:
    """The environments with a different torch."""
    yield f"[testenv:{{matrix-torch,torch}}-{{{','.join(environment.torch for environment in environments)}}}]"
    yield "deps ="
    yield "    {[releases]others}"
    same = {
        name for name in first.distributions if len({each.distributions[name] for each in (first, *environments)}) == 1
    }
    yield from (f"    {name}=={{[releases]{name}}}" for name in sorted(same))
    for environment in environments:
        distributions = {name: version for name, version in environment.distributions.items() if name not in same}
        yield from (f"    {environment.torch}: {name}=={version}" for name, version in distributions.items())


def ranges(prefix: str, versions: Iterable[Version]) -> Iterator[str]:
    """The versions, in order, in tox's notation: ds-0.12.{0-6}, and ds-0.13.{0-2,4} if one is missing."""
    for (major, minor), several in itertools.groupby(versions, key=lambda each: (each.major, each.minor)):
        patches = [each.micro for each in several]
        runs = []
        for _, group in itertools.groupby(enumerate(patches), key=lambda each: each[1] - each[0]):
            run = [patch for _, patch in group]
            runs.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
        listed = ",".join(runs)
        yield f"{prefix}{major}.{minor}.{f'{{{listed}}}' if len(patches) > 1 else listed}"
