"""What a signature declares: what a log shows of one fault, what that is, and what helps."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class Role(enum.Enum):
    """What it says about the job that it is in the log."""

    CAUSE = "cause"  # this stopped the job, or made it wrong
    GENERAL = "general cause"  # the same, where nothing more special is known of the same traceback
    FOLLOW_UP = "follow-up"  # an error before it, on another rank perhaps, is the cause
    NOTE = "note"  # the job goes on


@dataclass(frozen=True)
class Signature:
    """One fault.

    pattern: a regular expression, searched in one traceback of one process, or in the lines of one process around what
        it requires; "" where the symptoms of `patches` say it. It requires a string of at least eight characters.
    title: one line, without a full stop. what, remedy: sentences; `remedy` is what helps besides dsfix.
    affects: PEP 440 specifiers per distribution, for the reader; the ranges of the patches are added.
    patches: the ids of those that cure it; their symptoms are this fault, too.
    evidence: links.
    """

    id: str
    title: str
    what: str
    remedy: str
    pattern: str = ""
    affects: Mapping[str, str] = field(default_factory=dict)
    patches: tuple[str, ...] = ()
    role: Role = Role.CAUSE
    evidence: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (self.pattern or self.patches):
            raise ValueError(f"{self.id}: neither a pattern nor a patch")
