"""What a signature declares: how one problem appears in a log, what it is, and the remedy."""

from __future__ import annotations

import enum
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FAMILIES = Path(__file__).with_name("signatures")
_NUMBER = re.compile(r"([\w.-]+/[\w.-]+)?#(\d+)")


class Role(enum.Enum):
    """What the problem means for the job."""

    CAUSE = "cause"  # it stopped the job or made it wrong
    GENERAL = "general"  # the same, unless the traceback matches a more specific one
    POSSIBLE = "possible"  # a message with several causes, unless the traceback matches any of the above
    FOLLOW_UP = "follow-up"  # caused by an earlier error, perhaps on another rank
    NOTE = "note"  # the job continues


@dataclass(frozen=True)
class Signature:
    """One problem: a table of signatures/*.toml, whose name is the id.

    pattern: a regular expression, searched in one traceback of one process, or in the lines of one process around the
        strings it requires; "" if the symptoms of `patches` are sufficient. It must require a string of at least eight
        bytes.
    title: one line, without a full stop. what, remedy: sentences; `remedy` is what helps apart from dsfix.
    affects: PEP 440 specifiers per distribution, to show; the ranges of the patches are added.
    patches: ids of the patches that fix it; their symptoms also indicate this problem.
    pattern_of: the one of them whose symptom the pattern is a variant of, or "".
    evidence: links; in the file also "owner/repository#number", and "#number" of DeepSpeed.
    matches, near: texts in which it must be recognised, and similar ones in which it must not.
    """

    id: str
    title: str
    remedy: str
    what: str = ""
    pattern: str = ""
    affects: Mapping[str, str] = field(default_factory=dict)
    patches: tuple[str, ...] = ()
    pattern_of: str = ""
    role: Role = Role.CAUSE
    evidence: tuple[str, ...] = ()
    matches: tuple[str, ...] = ()
    near: tuple[str, ...] = ()


def load() -> tuple[Signature, ...]:
    """Returns the signatures of all families, in the order of the files' names."""
    tables = (tomllib.loads(file.read_text(encoding="utf-8")) for file in sorted(FAMILIES.glob("*.toml")))
    return tuple(_signature(name, fields) for table in tables for name, fields in table.items())


def _signature(name: str, fields: Mapping[str, Any]) -> Signature:
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
    values["role"] = Role(fields.get("role", Role.CAUSE.value))
    values["evidence"] = tuple(map(_link, fields.get("evidence", ())))
    return Signature(name, **values)


def _link(evidence: str) -> str:
    match = _NUMBER.fullmatch(evidence)
    return f"https://github.com/{match[1] or 'deepspeedai/DeepSpeed'}/issues/{match[2]}" if match else evidence
