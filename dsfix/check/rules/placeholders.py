"""Templates: values that a script is to fill in."""

from __future__ import annotations

from collections.abc import Iterator

from ...rules import Match, error, warning
from ..facts import Facts, name_of
from ..placeholders import takes_text

FOR_PLACEHOLDERS = ("template", "placeholder_in_text")


def _listed(facts: Facts) -> str:
    return ", ".join(f"{name_of(path)} ({text})" for path, text in facts.placeholders.items())


def _rejects(facts: Facts) -> bool:
    return any(not takes_text(path, facts.known.keys) for path in facts.placeholders)


@error(
    "fill them in, and check the result",
    "run: 0.12.0 to 0.19.8: for a number a string is rejected, for a boolean rejected or taken for true",
)
def template(facts: Facts) -> Iterator[Match]:
    if facts.placeholders and _rejects(facts):
        yield Match("", f"this is a template: fill in the placeholders in {_listed(facts)}")


@warning("fill them in", "the source of 0.12.0 to 0.19.8: nothing is replaced in a config")
def placeholder_in_text(facts: Facts) -> Iterator[Match]:
    if facts.placeholders and not _rejects(facts):
        yield Match("", f"placeholders, which DeepSpeed would use as values: {_listed(facts)}")
