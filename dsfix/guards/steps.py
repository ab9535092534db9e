"""Around deepspeed.initialize: the engine whose steps date what patches do, none while the next one is made."""

from __future__ import annotations

from typing import Any

from ..process import effects
from .initialize import Call


def before(call: Call) -> None:
    effects.count_steps_of(None)


def after(call: Call, result: Any) -> None:
    if isinstance(result, tuple) and result:
        effects.count_steps_of(result[0])
