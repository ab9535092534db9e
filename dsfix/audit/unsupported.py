"""What the audit has no reference for."""

from __future__ import annotations


class Unsupported(Exception):
    """The message is the sentence that says what the audit has no reference for."""
