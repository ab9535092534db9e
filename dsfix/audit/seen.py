"""What one rank of an audit saw, as written to its file. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Seen:
    """start, steps: Parts; the other fields as in Record and Verdict."""

    start: Any = None
    steps: list[Any] = field(default_factory=list)
    exports: dict[str, dict[str, Any]] = field(default_factory=dict)
    unseen: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    patches: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    device: str = ""
    failed: str = ""
    races: tuple[str, ...] = ()
