"""Python's garbage collector, which costs more than dsfix itself where it runs among torch's objects."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Without automatic collections, as syntax trees bring on many of them, which look at all that torch has loaded."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
