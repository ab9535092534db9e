"""The order in which the emulated device does the work on its streams."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from dsfix.lab.distributions import LabUnavailable

SCHEDULE = "DSFIX_LAB_SCHEDULE"
NAMES = ("early", "late", "ahead", "random")
USAGE = "early, late, ahead or random:SEED"


@dataclass(frozen=True)
class Schedule:
    """name: one of NAMES; seed: of "random"."""

    name: str
    seed: int = 0


def parse(text: str) -> Schedule:
    """The schedule that a text names. Raises ValueError."""
    name, _, seed = text.partition(":")
    if name not in NAMES or (name == "random") != seed.isdecimal() or (seed == "") != (name != "random"):
        raise ValueError(f"expected {USAGE}, got {text!r}")
    return Schedule(name, int(seed or 0))


def of_environment(environment: Mapping[str, str] = os.environ) -> Schedule | None:
    """The schedule that the variable sets; None: every call is synchronous. Raises LabUnavailable."""
    text = environment.get(SCHEDULE, "")
    try:
        return parse(text) if text else None
    except ValueError as error:
        raise LabUnavailable(f"{SCHEDULE}: {error}") from None
