"""cpu_checkpointing on a GPU, which copies asynchronously since 0.19.6, overwrites its input tensors with garbage.

Why: since 0.19.6 the inputs of a checkpoint are copied to the CPU on a separate stream, and restored in the backward
    pass; until then, the very tensor that the model passed holds an uninitialized number. A model that uses it again,
    `x + checkpoint(block, x)`, a mask of all layers, a second checkpoint, computes with garbage or fails.
How: a detached alias of the tensor takes its place, and is emptied instead; the tensor is freed as soon as the model no
    longer needs it. One that is given twice is still copied once.
Changes: models that use an input of a checkpoint again: losses and gradients are those without the option.
Workaround: Scripts pass `x.clone()`, mark tensors with `no_checkpointing`, or leave the option off. You can keep it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dsfix.patch import Edit, Patch, Severity, Source
from dsfix.process.effects import ran

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OFFLOADED = "deepspeed.runtime.activation_checkpointing.checkpointing:get_offloaded_activations_for_backward"


def stand_ins(inputs: Sequence[Any], is_kept: Callable[[Any], bool]) -> list[Any]:
    """The inputs of a checkpoint; one alias in place of each tensor that is about to be emptied."""
    ran(__name__)  # whether the model uses one again, nothing shows
    kept = {id(each): each.detach().requires_grad_(each.requires_grad) for each in inputs if is_kept(each)}
    return [kept.get(id(each), each) for each in inputs]


PATCH = Patch(
    title="cpu_checkpointing on a GPU, since 0.19.6: inputs of a checkpointed function are overwritten with garbage",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.19.6"},
    changes=(
        Edit(
            _OFFLOADED,
            after="to_empty = []",
            code="args = stand_ins(args, is_activation_to_checkpoint)",
            uses=(stand_ins,),
        ),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/8282": "introduced in 0.19.6"},
    present=(Source(_OFFLOADED, "to_empty.append(arg)"),),
    config=lambda job: bool(job.get("activation_checkpointing", "cpu_checkpointing")),
)


def reproduce(lab: Lab) -> str:
    from ._checkpointing import residual, train

    return train(lab, residual, "checkpoint", {"checkpoint_in_cpu": True})
