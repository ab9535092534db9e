"""After deepspeed.initialize: the engine whose steps date what patches do."""

from __future__ import annotations

from typing import Any

from ..process import effects
from .initialize import Call


def after(call: Call, result: Any) -> None:
    if isinstance(result, tuple) and result:
        effects.count_steps_of(result[0])
