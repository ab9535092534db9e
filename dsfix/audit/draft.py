"""A plan in the making: what each step of `resolve` reads and changes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..check.arguments import Value
from ..check.facts import Facts
from .plan import Plan

MOST_RANKS = 8


class NotAudited(ValueError):
    """Why this config cannot be audited: one sentence, or one per line."""


@dataclass(frozen=True)
class Options:
    """The command-line options, as in Plan; None if not given. most_ranks: how many ranks fit on the device."""

    ranks: int | None = None
    steps: int | None = None
    device: str | None = None
    freeze: str | None = None
    backwards: str | None = None
    zero_init: bool | None = None
    schedule: str | None = None
    phases: tuple[str, ...] | None = None
    arguments: Mapping[str, Value] = field(default_factory=dict)
    most_ranks: int = MOST_RANKS


@dataclass
class Draft:
    """facts: the config file as written. config: the plan's, changed in place. notes: one sentence per change."""

    facts: Facts
    options: Options
    config: dict[str, Any] = field(init=False)
    plan: Plan = field(init=False)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.config = copy.deepcopy(self.facts.config)
        self.plan = Plan(self.config)

    def set(self, **fields: Any) -> None:
        self.plan = replace(self.plan, **fields)
