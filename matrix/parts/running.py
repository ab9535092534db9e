"""Runs parts on a release in child processes, without dsfix and with it, and finds the patches that make them agree."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from dsfix.lab.isolation import isolated_environment
from dsfix.lab.ranks import fresh_command, launch
from matrix import environments
from matrix.parts.part import OTHER, Part, digest
from matrix.parts.record import ABSENT, AGREES, DIFFERS, PATCHED, Line
from matrix.runner import Servers

_TIMEOUT = 300.0  # seconds, for each part
_MANY = 20  # examples: a part with fewer, each of which takes long, has processes of its own
_CHECKOUT = Path(__file__).resolve().parents[2]
_PRELOADING = _CHECKOUT / "matrix" / "bystanders" / "preloading.py"

#: parts, patches to leave out -> what each showed, by name, as child.py writes it
Try = Callable[[Sequence[Part], Sequence[str]], Mapping[str, Any]]


@dataclass(frozen=True)
class Batch:
    """Parts of one area that share processes."""

    release: str
    parts: tuple[Part, ...]


def batches(release: str, parts: Sequence[Part]) -> Iterator[Batch]:
    def shared(part: Part) -> tuple[str, int, str, str]:
        return part.area, part.ranks, part.device, part.name if part.examples < _MANY else ""

    for _, each in groupby(sorted(parts, key=shared), shared):
        yield Batch(release, tuple(each))


class Children(Servers):
    """Runs parts on releases, in processes forked from one that has imported DeepSpeed; thread-safe."""

    def _command(self, release: str, device: str, skip: Sequence[str]) -> Sequence[str]:
        """Those that look for a patch start anew."""
        if _searching(skip):
            return fresh_command("matrix.parts.child")
        path, left_out = str(environments.installed(release)), ",".join(skip)
        return self.server(device, _PRELOADING, PYTHONPATH=path, DSFIX_SKIP=left_out).command("matrix.parts.child")

    def attempt(self, release: str, parts: Sequence[Part], skip: Sequence[str]) -> dict[str, Any]:
        """Runs the parts; one that its process does not survive differs, and the others go on in a new process."""
        seen: dict[str, Any] = {}
        while waiting := [each for each in parts if each.name not in seen]:
            with tempfile.TemporaryDirectory(prefix="dsfix-parts-") as name:
                scratch = Path(name)
                environment = isolated_environment(scratch, path=environments.installed(release), skip=skip)
                environment["TORCHDYNAMO_DISABLE"] = "1"  # compiling takes minutes
                environment["PYTHONPATH"] += f"{os.pathsep}{_CHECKOUT}"
                names = json.dumps([each.name for each in waiting])
                argv = [
                    *self._command(release, waiting[0].device, skip),
                    waiting[0].device,
                    names,
                    name,
                    "" if _searching(skip) else "shrink",
                ]
                ranks = launch(argv, waiting[0].ranks, _TIMEOUT * len(waiting), environment, scratch)
                files = [scratch / f"{rank.rank}.jsonl" for rank in ranks]
                written = [each.read_text(encoding="utf-8").splitlines() for each in files if each.exists()]
            for told in (json.loads(line) for lines in written for line in lines):
                known = seen.setdefault(told["name"], told)
                if told["outcome"] == DIFFERS and (known["outcome"] != DIFFERS or known["seen"].endswith(OTHER)):
                    seen[told["name"]] = told
            if any(rank.returncode for rank in ranks) and (left := [e for e in waiting if e.name not in seen]):
                seen[left[0].name] = {
                    "outcome": DIFFERS,
                    "seen": _end(ranks),
                    "applied": [],
                    "reached": [],
                    "examples": 0,
                }
        return seen


def _searching(skip: Sequence[str]) -> bool:
    return skip not in ((), environments.not_importing())


def _end(ranks: Sequence[Any]) -> str:
    if any(each.timed_out for each in ranks):
        return "no end"
    rank = min(ranks, key=lambda each: each.returncode == -9)
    last = [line for line in rank.stderr.splitlines() if line.strip()] or ["no message"]
    print(rank.stderr[-3000:], file=sys.stderr)
    return f"ended with {rank.returncode}: {last[-1].strip()[:200]}"


def run(batch: Batch, children: Children, known: Mapping[str, Collection[str]]) -> list[Line]:
    """What the parts of a batch show. known: the patches that have made a part agree on other releases, by its name."""

    def tried(parts: Sequence[Part], skip: Sequence[str]) -> dict[str, Any]:
        return children.attempt(batch.release, parts, skip)

    patched = tried(batch.parts, ())
    plain = tried(batch.parts, environments.not_importing())
    return [
        _line(each, batch.release, plain[each.name], patched[each.name], tried, known.get(each.name, ()))
        for each in batch.parts
    ]


def _line(part: Part, release: str, plain: Any, patched: Any, tried: Try, known: Collection[str]) -> Line:
    outcome, patches, seen = patched["outcome"], tuple[str, ...](), patched["seen"]
    if outcome == AGREES and plain["outcome"] == DIFFERS:

        def agrees(skip: Sequence[str]) -> bool:
            return bool(tried([part], skip)[part.name]["outcome"] == AGREES)

        for likely in known, patched["reached"], patched["applied"]:
            patches = tuple(needed([each for each in patched["applied"] if each in likely], agrees))
            if patches:
                break
        outcome, seen = PATCHED, plain["seen"]
    elif outcome == DIFFERS and plain["outcome"] in (AGREES, ABSENT):
        seen = f"only with dsfix: {seen}"
    return Line(part.name, release, digest(part.area), outcome, patches, seen)


def needed(patches: Sequence[str], agrees: Callable[[Sequence[str]], bool], also: Sequence[str] = ()) -> list[str]:
    """Those of the patches without which the part does not agree, `also` left out."""
    if not patches or agrees([*patches, *also]):
        return []
    if len(patches) == 1:
        return list(patches)
    one, other = patches[: len(patches) // 2], patches[len(patches) // 2 :]
    # where each half suffices alone, the first patch that is needed if the other half is left out
    return [*needed(one, agrees, also), *needed(other, agrees, also)] or needed(one, agrees, [*other, *also])
