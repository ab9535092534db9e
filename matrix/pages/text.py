"""Phrases and Markdown that several pages share."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence

from dsfix.catalogue.registry import Entry
from dsfix.patch import Patch
from matrix.proofs import State
from matrix.table import span

from .evidence import Column, Evidence

HEADINGS = ("Why", "How", "Changes", "Workaround")
_HEADING = re.compile(rf"^({'|'.join(HEADINGS)}):[ \n]", re.M)
_WRAP = re.compile(r"(?<!\n)\n(?!\n| |- )")  # between two lines of one paragraph
_MARKUP = re.compile(r"[\\*<\[\]|~`]|(?<![^\W_])_|_(?![^\W_])")  # an underscore within a word is not markup
_LITERAL = re.compile(r"(`[^`]+`|https?://[^\s<>|]+)")


def story(entry: Entry) -> dict[str, str]:
    """Heading -> text, one line per paragraph, from the docstring of the patch's module."""
    parts = _HEADING.split(inspect.cleandoc(entry.docstring) + "\n")[1:]
    return {
        heading: _WRAP.sub(" ", inspect.cleandoc(text)) for heading, text in zip(parts[::2], parts[1::2], strict=True)
    }


def affected(patch: Patch, releases: Sequence[str]) -> str:
    """The releases that the patch claims."""
    return span([release for release in releases if patch.claims(release)], releases)


def beside(patch: Patch) -> str:
    """What else must be installed for the patch to apply: "torch >=2.4"."""
    return ", ".join(f"{name} {specifiers}" for name, specifiers in patch.affects.items() if name != "deepspeed")


def proven(evidence: Evidence, patch_id: str, column: Column) -> str:
    """The patch's range as proven: "fixed on 0.14.1, 0.14.2; no bug on the other 58"."""
    by_state: dict[State, list[str]] = {}
    for release, judged in evidence.cells[patch_id][column.name].items():
        by_state.setdefault(judged.state, []).append(release)
    total = len(column.releases)
    outside = by_state.get(State.NOT_AFFECTED, [])
    if len(outside) == total:
        return f"no bug on any of its {total} releases"
    phrases = {
        State.FIXED: "fixed on {}",
        State.NOT_AFFECTED: "no bug on {}",
        State.CANNOT_TELL: "cannot tell on {}",
        State.WRONG: "contradicted on {}",
        State.NOT_RUN: "not run on {}",
    }
    if by_state.keys() == {State.FIXED, State.NOT_AFFECTED}:
        phrases[State.NOT_AFFECTED] = f"no bug on the other {len(outside)}"
    if column.on_gpu and len(by_state) > 1:  # such a machine was available for some releases only
        del phrases[State.NOT_RUN]
    parts = [
        phrase.format(span(by_state[state], column.releases)) for state, phrase in phrases.items() if state in by_state
    ]
    earlier = [
        release
        for release, judged in evidence.cells[patch_id][column.name].items()
        if judged.cell is not None and judged.cell.earlier
    ]
    if earlier:
        parts.append(f"run with an earlier version of the patch on {span(earlier, column.releases)}")
    return "; ".join(parts)


def short_link(link: str) -> str:
    """ "#5422" for an issue or pull request of DeepSpeed, "accelerate #3877" for another project; a commit's hash."""
    repository, kind, number = link.split("/")[-3:]
    name = number[:12] if kind == "commit" else f"#{number}"
    return name if repository == "DeepSpeed" else f"{repository} {name}"


def escape(text: str) -> str:
    """The text escaped for Markdown; code spans and links are kept."""
    parts = _LITERAL.split(text)
    parts[::2] = [_MARKUP.sub(r"\\\g<0>", part) for part in parts[::2]]
    parts[1::2] = [part.replace("|", r"\|") if part.startswith("`") else part for part in parts[1::2]]
    return "".join(parts)


def code(text: str) -> str:
    """The text, which has no line ends, as a code span."""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    pad = " " if "`" in (text[:1], text[-1:]) else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table of cells that are already Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(' '.join(cell.split()) for cell in line)} |\n" for line in lines)
