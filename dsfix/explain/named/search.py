"""The facts of what a text names, for a text in which no message was recognised."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence

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
    if not is_of_the_field(plain(text)):
        return []
    sentences, there, versions = [*prose.sentences(text)], places.of(text), search.versions(reading)
    found = [
        (weight, fact, names)
        for fact in _all()
        if (names := {name: place for name in fact.names if (place := places.weight(name, there))})
        and (weight := _weight(fact, max(names.values()), sentences, names))
        and _fits(fact, versions)
    ]
    told: list[Possibility] = []
    for _, fact, names in sorted(found, key=lambda each: -each[0]):
        if not any(names.keys() & each.words for each in told):  # one fact of a name is enough
            told.append(_possibility(fact, [*names]))
    return told[:_MOST]


@functools.cache
def _all() -> tuple[Fact, ...]:
    return tuple(rules.declared(f"{__package__}.facts", "FACTS"))


def _weight(fact: Fact, place: float, sentences: Sequence[str], names: Iterable[str]) -> float:
    """Returns 0 where the fact does not belong; more where more words stand beside its names."""
    if not fact.beside:
        return place if place > places.CODE else 0.0
    told = frozenset().union(*(named(plain(places.without(names, each))) for each in sentences))
    fitting = [ways for way in fact.beside if (ways := set(way.split(" + "))) <= told]
    return place + _BESIDE * max(map(len, fitting)) if fitting else 0.0


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
