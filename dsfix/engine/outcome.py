"""What became of a patch: exactly one outcome, with a sentence of why."""

from __future__ import annotations

import enum


class Outcome(enum.Enum):
    APPLIED = "applied"
    PENDING = "pending"
    NOT_AFFECTED = "not-affected"
    ALREADY_FIXED = "already-fixed"
    DRIFTED = "drifted"
    CONFLICT = "conflict"
    DISABLED = "disabled"
    TOO_LATE = "too-late"
    FAILED = "failed"

    @property
    def trouble(self) -> bool:
        """The bug is (or may be) there and the patch is not: worth a warning, an error under DSFIX_STRICT=1."""
        return self in (Outcome.DRIFTED, Outcome.CONFLICT, Outcome.TOO_LATE, Outcome.FAILED)


STAYS_OUT = (Outcome.NOT_AFFECTED, Outcome.ALREADY_FIXED)
"""The outcomes of a patch whose bug is not there."""

REMEDY = {
    Outcome.DRIFTED: "the source differs from every release this patch was proven on: `python -m dsfix show {id}` "
    "tells what it is about, DSFIX_SKIP={id} silences this",
    Outcome.CONFLICT: "remove the other change, or silence this with DSFIX_SKIP={id}",
    Outcome.TOO_LATE: "put `import dsfix` on the first line of the script",
    Outcome.FAILED: "report it, or silence it with DSFIX_SKIP={id}",
}
"""What a user can do about each kind of trouble; `{id}` is the patch's id."""


class Refused(Exception):
    """A change is not made, for a known reason: `outcome` and a sentence. Nothing has been touched."""

    def __init__(self, outcome: Outcome, reason: str) -> None:
        super().__init__(reason)
        self.outcome = outcome
        self.reason = reason


class StrictError(RuntimeError):
    """Raised under DSFIX_STRICT=1 in place of a warning."""


class UnknownPatch(LookupError):
    """No patch has this id; the message names the nearest ids."""

    def __init__(self, patch_id: str, known: list[str]) -> None:
        import difflib

        near = difflib.get_close_matches(patch_id, known, n=3, cutoff=0.5)
        hint = f"; did you mean {' or '.join(near)}?" if near else "; `python -m dsfix list` shows all ids"
        super().__init__(f"no patch is called {patch_id!r}{hint}")
