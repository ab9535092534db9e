"""deepspeed.checkpointing.non_reentrant_checkpoint with `profile`: "backward timer has already been started".

Why: all checkpoints share one timer. Recomputing a function starts it; hooks stop it when each parameter that the
    function saved has its gradient. If none was saved (no parameters, frozen ones, only Linear, which saves a view of
    its weight), or if another function shares one, it still runs when the next checkpoint starts it. Hooks are never
    removed: those of a forward pass without a backward pass count in later ones, and stop the timer of another.
How: a timer that still runs is stopped and logged when the next checkpoint starts it, also by `checkpoint`, and at the
    end of the backward pass. Hooks stop it only for their own checkpoint, when they did before. Without `profile` this
    costs one check per saved parameter.
Workaround: None in the script; it does not fail without `profile`, nor with deepspeed.checkpointing.checkpoint alone.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from dsfix.patch import CannotTell, Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_CHECKPOINTING = "deepspeed.runtime.activation_checkpointing.checkpointing"
_NON_REENTRANT = f"{_CHECKPOINTING}:non_reentrant_checkpoint.<locals>"
_START = "timers('backward').start()"
_MESSAGE = "backward timer has already been started"


def start_backward_timer(timers: Any, holder: object) -> None:
    """holder: stands for a tensor that the function saved; its class belongs to this checkpoint alone."""
    _stop_if_running(timers, "when the next checkpoint started it")
    timer = timers("backward")
    timer.start()
    timer.checkpoint = type(holder)
    if holder is not None:  # `checkpoint` always stops it itself
        from torch.autograd import Variable

        with contextlib.suppress(RuntimeError):  # outside a backward pass, when a script reads what a function saved
            Variable._execution_engine.queue_callback(
                lambda: _stop_if_running(timers, "at the end of the backward pass")
            )


def stop_backward_timer(timers: Any, leaf_tensors: list[Any]) -> None:
    """leaf_tensors: of the checkpoint whose last hook runs."""
    timer = timers("backward")
    if timer.started_ and getattr(timer.checkpoint, "leaf_tensors", None) is leaf_tensors:
        _stop(timers)
    else:
        took_effect(__name__, "the backward timer of another checkpoint was not stopped")


def _stop_if_running(timers: Any, when: str) -> None:
    if timers("backward").started_:
        took_effect(__name__, "the backward timer was stopped %s (unpatched: it kept running)", when)
        _stop(timers)


def _stop(timers: Any) -> None:
    timer = timers("backward")
    timer.stop()
    timer.checkpoint = None  # it keeps the parameters
    timers.log(["backward"])


PATCH = Patch(
    title="deepspeed.checkpointing.non_reentrant_checkpoint with profile: AssertionError in the backward pass, timer "
    "already started",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.12.0"},
    changes=(
        Edit(
            f"{_NON_REENTRANT}.checkpoint_pack",
            after="leaf_tensors.append(tensor_from_forward)",
            code="if PROFILE_TIME:\n    Holder.leaf_tensors = leaf_tensors",
        ),
        Edit(
            f"{_NON_REENTRANT}.checkpoint_unpack",
            replace=_START,
            code="start_backward_timer(timers, holder_from_backward)",
            uses=(start_backward_timer,),
        ),
        Edit(
            f"{_NON_REENTRANT}.after_backward_hook",
            replace="timers('backward').stop()\ntimers.log(['backward'])",
            code="stop_backward_timer(timers, leaf_tensors)",
            uses=(stop_backward_timer,),
        ),
        Edit(
            f"{_CHECKPOINTING}:CheckpointFunction.backward",
            replace=_START,
            code="start_backward_timer(timers, None)",
            uses=(start_backward_timer,),
        ),
    ),
    symptom=rf"in checkpoint_unpack\n[\s\S]*AssertionError: {_MESSAGE}",
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/4118": "introduced in 0.10.2"},
    present=(Source(f"{_NON_REENTRANT}.after_backward_hook", "backward_visited_leaf_nodes == len(leaf_tensors)"),),
)


def reproduce(lab: Lab) -> str:
    checkpointing = lab.deepspeed.checkpointing
    if not hasattr(checkpointing, "non_reentrant_checkpoint"):
        raise CannotTell("this release has no non_reentrant_checkpoint")
    from deepspeed.utils.timer import SynchronizedWallClockTimer

    from ._checkpointing import train

    checkpoints, logged = [], []

    class Timers(SynchronizedWallClockTimer):  # type: ignore[misc]
        def log(self, names: Any, *args: Any, **options: Any) -> None:
            logged.extend(names)
            super().log(names, *args, **options)

    def each_layer(checkpoint: Any, block: Any, x: Any) -> Any:
        for layer in block:  # the ReLU has no parameters
            if checkpoint is checkpointing.non_reentrant_checkpoint:
                checkpoints.append(layer)
            x = checkpoint(layer, x)
        return x

    checkpointing.timers = Timers()
    result = train(lab, each_layer, "non_reentrant_checkpoint", {"profile": True}, error=_MESSAGE)
    assert logged.count("backward") == len(checkpoints), f"{logged.count('backward')} times for {len(checkpoints)}"
    return f"{result}; {len(checkpoints)} times were logged"
