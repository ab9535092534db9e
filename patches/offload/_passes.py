"""ZeRO-1 and ZeRO-2 with optimizer offload: what the script has discarded between two backward passes of a step."""

from __future__ import annotations

from typing import Any

from .._passes import discarded


def forget(optimizer: Any, patch: str) -> None:
    """In the next pass, once: drop, of what the patches of this folder keep, the gradients that are not used."""
    gone = discarded(optimizer, patch)
    if not gone:
        return
    state = optimizer.__dict__
    for param in (each for group in optimizer.params_in_partition for each in group if id(each) in gone):
        number = optimizer.get_param_id(param)
        optimizer.norm_for_param_grads.pop(number, None)
        state.get("_dsfix_copied", {}).pop(number, None)
        for name in ("_dsfix_kept", "_dsfix_reached"):
            state.get(name, set()).discard(number)
