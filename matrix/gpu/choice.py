"""Which cells are run, and in which order, when time does not suffice for all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from dsfix.catalogue.registry import Entry
from dsfix.patch import Severity
from matrix import proofs


def cells(entries: Iterable[Entry], releases: Sequence[str], versions: Mapping[str, str]) -> list[tuple[Entry, str]]:
    """Of the patches whose reproductions use a GPU: first each on its newest affected release, then on its oldest, then
    on the newest unaffected one, then on the others that are affected. releases: from old to new.
    """
    severities = list(Severity)
    ordered = sorted(entries, key=lambda entry: (severities.index(entry.patch.severity), entry.id))
    rounds = []
    for entry in ordered:
        if entry.patch.device == "cuda":
            inside = [release for release in releases if proofs.inside(entry.patch, {**versions, "deepspeed": release})]
            rounds.append(
                [
                    (entry, each)
                    for each in _by_value(inside, [release for release in releases if release not in inside])
                ]
            )
    longest = max(map(len, rounds), default=0)
    return [each[place] for place in range(longest) for each in rounds if place < len(each)]


def _by_value(inside: Sequence[str], outside: Sequence[str]) -> Iterator[str]:
    yield from dict.fromkeys((*inside[-1:], *inside[:1], *outside[-1:], *inside[::-1]))


def cover(entries: Sequence[Entry], releases: Mapping[str, Mapping[str, str]], newest: str) -> list[str]:
    """A small set of releases, including `newest`, that covers every patch whose reproduction needs a GPU.

    releases: release -> the versions that it is run with.
    """
    affected = {
        release: {
            entry.id for entry in entries if entry.patch.device == "cuda" and proofs.inside(entry.patch, versions)
        }
        for release, versions in releases.items()
    }
    chosen = {newest}
    left = set().union(*affected.values()) - affected[newest]
    while left:
        best = max(reversed(list(releases)), key=lambda release: len(affected[release] & left))
        chosen.add(best)
        left -= affected[best]
    return [each for each in releases if each in chosen]
