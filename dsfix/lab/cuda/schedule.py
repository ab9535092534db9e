"""The order in which the emulated device does the work on its streams, and what it records meanwhile."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from dsfix.lab.errors import LabUnavailable

SCHEDULE = "DSFIX_LAB_SCHEDULE"
RACES = "DSFIX_LAB_RACES"
NAMES = ("early", "late", "ahead", "random")
USAGE = "early, late, ahead or random:SEED"


@dataclass(frozen=True)
class Schedule:
    """name: one of NAMES; seed: of "random"; races: whether unordered uses of the same bytes are recorded."""

    name: str
    seed: int = 0
    races: bool = False


def parse(text: str) -> Schedule:
    """The schedule that a text names. Raises ValueError."""
    name, _, seed = text.partition(":")
    if name not in NAMES or (name == "random") != seed.isdecimal() or (seed == "") != (name != "random"):
        raise ValueError(f"expected {USAGE}, got {text!r}")
    return Schedule(name, int(seed or 0))


def variables(schedule: str, races: bool) -> dict[str, str]:
    """The variables that make a process's emulated device follow a schedule and record races."""
    return {SCHEDULE: schedule, RACES: "1" if races else ""}


def of_environment(environment: Mapping[str, str] = os.environ) -> Schedule | None:
    """The schedule that the two variables set; None: every call is synchronous. Raises LabUnavailable."""
    text, races = environment.get(SCHEDULE, ""), bool(environment.get(RACES))
    if not text and not races:
        return None
    try:
        found = parse(text or "early")
    except ValueError as error:
        raise LabUnavailable(f"{SCHEDULE}: {error}") from None
    return Schedule(found.name, found.seed, races)
