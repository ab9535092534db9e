"""Expressions for sentences: each phrase is whole in them, as a string to search for must be."""

from __future__ import annotations


def phrases(*parts: str) -> str:
    """Returns an expression for each combination of the parts' alternatives, which "|" separates.

    >>> phrases("a |b ", "c|d")
    'a c|a d|b c|b d'
    """
    found = [""]
    for part in parts:
        found = [start + end for start in found for end in part.split("|")]
    return "|".join(found)
