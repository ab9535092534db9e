"""What a signature declares: how one problem appears in a log, what it is, and what helps."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class Role(enum.Enum):
    """What the problem means for the job."""

    CAUSE = "cause"  # it stopped the job or made it wrong
    GENERAL = "general cause"  # the same, unless the traceback matches a more specific one
    POSSIBLE = "possible cause"  # a message with several causes, unless the traceback matches any of the above
    FAMILY = "family of messages"  # what errors of a kind usually mean, unless the traceback matches any of the above
    FOLLOW_UP = "follow-up"  # caused by an earlier error, perhaps on another rank
    NOTE = "note"  # the job continues


def pull(number: int) -> tuple[str]:
    """A pull request of DeepSpeed, as evidence."""
    return (f"https://github.com/deepspeedai/DeepSpeed/pull/{number}",)


@dataclass(frozen=True)
class Signature:
    """One problem.

    pattern: a regular expression, searched in one traceback of one process, or in the lines of one process around the
        strings it requires; "" if the symptoms of `patches` are sufficient. It must require a string of at least eight
        bytes.
    title: one line, without a full stop. what, remedy: sentences; `remedy` is what helps besides dsfix.
    affects: PEP 440 specifiers per distribution, to show; the ranges of the patches are added.
    patches: ids of the patches that fix it; their symptoms indicate this problem, too.
    pattern_of: the one of them whose symptom the pattern is another form of, or "".
    evidence: links.
    """

    id: str
    title: str
    what: str
    remedy: str
    pattern: str = ""
    affects: Mapping[str, str] = field(default_factory=dict)
    patches: tuple[str, ...] = ()
    pattern_of: str = ""
    role: Role = Role.CAUSE
    evidence: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (self.pattern or self.patches):
            raise ValueError(f"{self.id}: neither a pattern nor a patch")
        if self.pattern_of and self.pattern_of not in self.patches:
            raise ValueError(f"{self.id}: the pattern is of a patch that is not named")
