"""docs/names.md: what is known of options, functions and classes, by their names."""

from __future__ import annotations

from dsfix import rules
from dsfix.explain.named import facts
from dsfix.explain.named.fact import Fact

from . import text

_HEAD = """\
# What to know of an option or a function

Written by `python -m tox run -e docs` from `dsfix/explain/named/facts/`; edit these.

What options, functions, classes and environment variables of DeepSpeed, and of what it is used with, need, what they
do not do, and what helps. Search this page for a name. `python -m dsfix explain` tells it of the names in a report in
which it recognises no message. Errors by their messages: [errors.md](errors.md).
"""
_FRAMES = """
## In a traceback

The last functions of a traceback, and what makes them fail.

"""
_OPTIONS = """
## Options, functions and classes

"""


def render() -> str:
    """The page's Markdown."""
    found = sorted(rules.declared(facts.__name__, "FACTS"), key=_order)
    options = [fact for fact in found if not _is_frame(fact.names[0])]
    frames = [fact for fact in found if _is_frame(fact.names[0])]
    return _HEAD + "".join([_OPTIONS, *map(_entry, options), _FRAMES, *map(_entry, frames)])


def _is_frame(name: str) -> bool:
    return ":" in name


def _order(fact: Fact) -> tuple[str, str]:
    name = fact.names[0].lstrip("_")
    return name.lower(), fact.id


def _entry(fact: Fact) -> str:
    affects = ", ".join(f"{name} {specifiers}" for name, specifiers in fact.affects.items())
    names = ", ".join(text.code(name) for name in fact.names)
    patches = "".join(f" · [`{each}`](catalogue.md#{each})" for each in fact.patches)
    title = text.escape(fact.title + (f" · {affects}" if affects else ""))
    return f"- {names}\n  - {title}{patches}. {text.escape(f'{fact.what} {fact.remedy}')}\n"
