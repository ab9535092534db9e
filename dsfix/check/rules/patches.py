"""Known bugs of the release that this config triggers: one rule per patch whose condition the config alone shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Callable

from ...catalogue import registry
from ...catalogue.registry import Entry
from ...rules import Found, Level, Rule
from ..facts import Facts


def _find(entry: Entry) -> Callable[[Facts], Iterator[Found]]:
    def find(facts: Facts) -> Iterator[Found]:
        if entry.patch.config is not None and entry.patch.config(facts.job):
            yield Found("", entry.patch.title)

    return find


RULES = tuple(
    Rule(
        id=f"bug_{entry.id}",
        level=Level.NOTE,
        affects=entry.patch.affects,
        find=_find(entry),
        remedy="put `import dsfix` on the first line of the script",
        evidence=tuple(entry.patch.upstream),
        patches=(entry.id,),
    )
    for entry in registry.catalogue().values()
    if entry.patch.config is not None
)
