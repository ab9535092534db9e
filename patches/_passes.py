"""Several backward passes before a step of ZeRO-1 or ZeRO-2: which of them the script has discarded.

Where nothing tells, the earlier ones are lost, as without the patch, with one warning.
"""

from __future__ import annotations

import collections
from typing import Any

from ._shared import tell_of_doubt, unwatch, watch


class _Pass:
    """A backward pass, through one engine or several. stepped: whether one of them has used it, or loaded since."""

    stepped = False


_latest = (-1, _Pass())
_told: set[str] = set()


def _this_pass() -> _Pass:
    """The pass that runs now; a new one where autograd is done already."""
    import torch

    global _latest
    task = getattr(torch._C, "_current_graph_task_id", lambda: -1)()
    if task == -1 or task != _latest[0]:
        _latest = (task, _Pass())
    return _latest[1]


def _is_own(optimizer: Any) -> bool:
    """Whether the engine's own `backward` runs: since 0.18.3 that of another engine ends a pass of this one, too."""
    engines = (getattr(hook, "__self__", None) for hook in getattr(optimizer, "_grad_acc_post_hooks", ()))
    return all(getattr(each, "_running_engine_backward", True) for each in engines)


def keep(optimizer: Any) -> None:
    """At the end of a pass whose gradients the next pass is added to."""
    passes = optimizer.__dict__.setdefault("_dsfix_passes", collections.deque(maxlen=64))
    passes.append((_this_pass(), _is_own(optimizer)))
    optimizer._dsfix_keeps = True
    watch(optimizer)


def finish(optimizer: Any) -> None:
    """At the step."""
    unwatch(optimizer)
    optimizer._dsfix_keeps = False
    for each, _ in optimizer.__dict__.pop("_dsfix_passes", ()):
        each.stepped = True


def reload(optimizer: Any) -> None:
    """A checkpoint is loaded, which may be to start again from it."""
    for each, _ in optimizer.__dict__.get("_dsfix_passes", ()):
        each.stepped = True


def discarded(optimizer: Any, patch: str) -> set[int]:
    """In the next pass, once: the parameters, by identity, whose gradients so far are not used."""
    if not optimizer.__dict__.pop("_dsfix_keeps", False):
        return set()
    passes = optimizer.__dict__.get("_dsfix_passes", ())
    discards = unwatch(optimizer)
    parameters = {id(param) for group in optimizer.bit16_groups for param in group}
    if any(each.stepped for each, _ in passes) or (_is_own(optimizer) and not all(own for _, own in passes)):
        passes.clear()
        if parameters - discards.certain:
            _tell(patch)
        return parameters
    if discards.doubtful & parameters:
        tell_of_doubt(patch)
    return parameters & (discards.certain | discards.doubtful)


def _tell(patch: str) -> None:
    from dsfix.log import rank, warn

    if rank() == 0 and patch not in _told:
        _told.add(patch)
        warn(
            f"{patch}: between two backward passes of a step a checkpoint was loaded, or another model that the first "
            "has reached made its step; or the first is that of another model's loss. Its gradients are lost, as "
            "without dsfix. If they are to be discarded, say so by engine.zero_grad(); if not, add the losses, and "
            "call backward once"
        )
