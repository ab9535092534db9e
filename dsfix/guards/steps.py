"""Around deepspeed.initialize: effects are logged with the steps of its engine; none while the next one is created."""

from __future__ import annotations

from typing import Any

from ..process import effects
from .initialize import Call


def before(call: Call) -> None:
    effects.count_steps_of(None)


def after(call: Call, result: Any) -> None:
    if isinstance(result, tuple) and result:
        effects.count_steps_of(result[0])
