"""Pauses Python's garbage collector, which would cost more than dsfix itself once torch is loaded."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

_paused = False


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """Pauses automatic garbage collections: syntax trees trigger many, and each traverses all that torch has loaded."""
    global _paused
    collects = gc.isenabled()
    gc.disable()
    _paused = collects or _paused
    try:
        yield
    finally:
        if collects:
            resume()


def resume() -> None:
    """Ends the pause; called in a forked child, too, because the thread that began it does not exist there."""
    global _paused
    if _paused:
        _paused = False
        gc.enable()
