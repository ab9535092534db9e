"""A warning about what DeepSpeed does, for patches that leave the results as they are."""

from __future__ import annotations

_warned: set[str] = set()


def warn_once(patch: str, message: str) -> None:
    """One WARNING on rank 0, the first time. patch: its module's `__name__`."""
    if patch in _warned:
        return
    _warned.add(patch)
    from dsfix.log import rank, warn

    if rank() == 0:
        warn(f"{patch.rpartition('.')[2]}: {message}")
