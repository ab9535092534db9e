"""Python's garbage collector, which costs more than dsfix itself where it runs among torch's objects."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

_paused = False


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Without automatic collections, as syntax trees bring on many of them, which look at all that torch has loaded."""
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
    """Ends the pause. In the child of a fork, too: another thread of the parent may have begun it, and is not here."""
    global _paused
    if _paused:
        _paused = False
        gc.enable()
