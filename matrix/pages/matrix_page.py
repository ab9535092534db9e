"""build/pages/matrix/index.html: the matrix as one static page, made of index.html, .css and .js in this folder."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

from matrix.proofs import State

from . import data

GLYPHS = {
    State.FIXED: ("●", "the bug occurred without the patch and not with it"),
    State.NOT_AFFECTED: ("·", "no bug, and the patch was not applied"),
    State.CANNOT_TELL: ("?", "it could not be determined"),
    State.WRONG: ("✕", "the result contradicts the patch's range"),
    State.NOT_RUN: ("-", "not run with this version of the patch"),
}
_HERE = Path(__file__).parent


def render(tree: Mapping[str, Any]) -> str:
    """The page; `tree` is the result of `data.tree`."""
    style, script = (f"\n{_part(name)}" for name in ("index.css", "index.js"))
    states = {state.value: glyph for state, glyph in GLYPHS.items()}
    # no text in it can end the element: in JSON, "<" occurs only inside strings
    embedded = json.dumps({**data.packed(tree), "states": states}, separators=(",", ":")).replace("<", "\\u003c")
    return Template(_part("index.html")).substitute(
        style=style, script=script, style_hash=_hash(style), script_hash=_hash(script), data=embedded
    )


def _part(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """The hash by which the content security policy allows this inline text."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
