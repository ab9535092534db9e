"""Parts of expressions; of sentences, in which each phrase is whole, as a string to search for must be, and of logs."""

from __future__ import annotations

# the traceback's last line is not in the log
NO_ERROR = r"(?![\s\S]*\w(?:Error|Exception|Interrupt)\b)"
# the same where a line of source may raise an error
NO_ERROR_BUT_IN_SOURCE = r"(?![\s\S]*\w(?:Error|Exception|Interrupt)\b(?!\())"


def phrases(*parts: str) -> str:
    """Returns an expression for each combination of the parts' alternatives, which "|" separates.

    >>> phrases("a |b ", "c|d")
    'a c|a d|b c|b d'
    """
    found = [""]
    for part in parts:
        found = [start + end for start in found for end in part.split("|")]
    return "|".join(found)
