"""The facts of what a text names, for a text in which no message was recognised."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from ... import rules
from ..closest import prose, search
from ..closest.search import Possibility
from ..closest.words import is_of_the_field, named, plain
from ..recognise import Reading
from . import places
from .fact import Fact

_MOST = 2
_BESIDE = 1.5  # what the sentences' other words add


def facts(reading: Reading) -> list[Possibility]:
    """Returns at most two, what the text is most about first; none beside a problem that was recognised, other than a
    family of messages."""
    if not search.may_be_asked(reading):
        return []
    (text,) = reading.short
    spoken = [plain(sentence) for sentence in prose.sentences(text)]
    if not is_of_the_field(plain(text)):
        return []
    told, there = frozenset().union(*map(named, spoken)), places.of(text)
    found = [
        (weight, fact, names)
        for fact in _all()
        if (names := [name for name in fact.names if places.key(name) in there])
        and (weight := _weight(fact, max(there[places.key(name)] for name in names), told))
        and _fits(fact, search.versions(reading))
    ]
    found.sort(key=lambda each: -each[0])
    return [_possibility(fact, names) for _, fact, names in found[:_MOST]]


@functools.cache
def _all() -> tuple[Fact, ...]:
    return tuple(rules.declared(f"{__package__}.facts", "FACTS"))


def _weight(fact: Fact, place: float, told: frozenset[str]) -> float:
    """Returns 0 where the fact does not belong."""
    if fact.beside:
        return place + _BESIDE if any(set(way.split(" + ")) <= told for way in fact.beside) else 0.0
    return place if place > places.CODE else 0.0


def _fits(fact: Fact, named_there: Sequence[Mapping[str, str]]) -> bool:
    return any(
        rules.fits({name: each for name, each in fact.affects.items() if name in versions}, versions)
        for versions in named_there
    )


def _possibility(fact: Fact, names: Sequence[str]) -> Possibility:
    return Possibility(
        id=fact.id,
        title=fact.title,
        what=fact.what,
        affects=tuple(filter(None, [fact.affects])),
        patches=fact.patches,
        remedy=fact.remedy,
        evidence=fact.evidence,
        words=tuple(names),
    )
