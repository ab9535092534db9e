"""Around deepspeed.initialize, where steps begin: effects are logged with the steps of its engine; none while the next
one is created. Patch files are loaded by now, because they may be replaced during a job (`pip install --upgrade`).
"""

from __future__ import annotations

from typing import Any

from .. import process
from ..process import effects
from .initialize import Call


def before(call: Call) -> None:
    effects.count_steps_of(None)
    process.load_patches()


def after(call: Call, result: Any) -> None:
    if isinstance(result, tuple) and result:
        effects.count_steps_of(result[0])
