"""The outcome of a patch: exactly one of these, with a reason in one sentence."""

from __future__ import annotations

import enum
from collections.abc import Iterable


class Outcome(enum.Enum):
    APPLIED = "applied"
    PENDING = "pending"
    NOT_AFFECTED = "not-affected"
    ALREADY_FIXED = "already-fixed"
    UNPROVEN = "unproven"  # the release is newer than any the patch was proven on, and its source does not show the bug
    DRIFTED = "drifted"
    CONFLICT = "conflict"
    DISABLED = "disabled"
    FAILED = "failed"

    @property
    def trouble(self) -> bool:
        """The bug is (or may be) present and the patch is not: worth a warning, an error under DSFIX_STRICT=1."""
        return self in REMEDY


BUG_ABSENT = (Outcome.NOT_AFFECTED, Outcome.ALREADY_FIXED)
"""The outcomes of a patch whose bug is absent."""

REMEDY = {
    Outcome.DRIFTED: "this source matches no release that the patch was tested on; `python -m dsfix show {id}` "
    "describes the bug, DSFIX_SKIP={id} silences this warning",
    Outcome.CONFLICT: "remove the other change, or set DSFIX_SKIP={id} to silence this warning",
    Outcome.FAILED: "report it; DSFIX_SKIP={id} silences this warning",
}
"""What a user can do about each kind of trouble; `{id}` is the patch's id."""


class ChangeRefused(Exception):
    """A change is not made, for a known reason: `outcome` and a sentence. Nothing has been changed."""

    def __init__(self, outcome: Outcome, reason: str) -> None:
        super().__init__(reason)
        self.outcome = outcome
        self.reason = reason


class StrictError(RuntimeError):
    """Raised under DSFIX_STRICT=1 in place of a warning."""


class RequirementError(RuntimeError):
    """Raised by `dsfix.require`; the message says in one sentence what is missing."""


class UnknownPatch(LookupError):
    """No patch has this id; the message suggests the nearest ids."""

    def __init__(self, patch_id: str, known: Iterable[str]) -> None:
        hint = did_you_mean(patch_id, known, "; `python -m dsfix find WORDS` searches", most=3)
        super().__init__(f"no patch is called {patch_id!r}{hint}")


def error_text(error: BaseException) -> str:
    """An unexpected exception, as a reason."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "", most: int = 1) -> str:
    """A hint for an unknown name: "; did you mean …?" with the nearest known ones, else `otherwise`."""
    import difflib

    near = difflib.get_close_matches(name, list(known), n=most, cutoff=0.5)
    return f"; did you mean {' or '.join(near)}?" if near else otherwise


def shortened_list(names: Iterable[str], most: int) -> str:
    """The first `most` names, and how many more there are."""
    every = list(names)
    return ", ".join(every[:most]) + (f" and {len(every) - most} more" if len(every) > most else "")
