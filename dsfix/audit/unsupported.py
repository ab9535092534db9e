"""The error for what the audit has no reference for."""

from __future__ import annotations


class Unsupported(Exception):
    """The message says what the audit has no reference for, in a sentence."""
