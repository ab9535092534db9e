"""A warning about what DeepSpeed does, for patches that leave the results as they are."""

from __future__ import annotations

_told: set[str] = set()


def tell(patch: str, message: str, each_rank: bool = False) -> None:
    """One WARNING on rank 0, the first time. patch: its module's `__name__`."""
    if patch in _told:
        return
    _told.add(patch)
    from dsfix.log import rank, warn

    if each_rank or rank() == 0:
        warn(f"{patch.rpartition('.')[2]}: {message}")
