"""deepspeed.checkpointing with partition_activations or cpu_checkpointing overwrites its input tensors with garbage.

Why: what is kept for the backward pass, a partition or a CPU copy, is attached to the very tensor that the model
    passed, whose own data is replaced with an uninitialized number. A model that uses this tensor again, `x +
    checkpoint(block, x)`, a mask of all layers, a second checkpoint, an evaluation, computes with garbage or fails;
    through 0.19.5 `non_reentrant_checkpoint` itself does so before it calls the function, as does cpu_checkpointing on
    a CPU.
How: a detached alias of the tensor takes its place, and is emptied instead. It holds no memory either: the tensor is
    freed as soon as the model no longer needs it. `non_reentrant_checkpoint` keeps the data itself in the alias, as
    its backward pass expects.
Changes: models that use an input of a checkpoint again: losses and gradients are those without the option.
Workaround: Scripts pass `x.clone()`, mark tensors with `no_checkpointing`, or leave the options off. You can keep it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dsfix.patch import Edit, Patch, Severity, Source
from dsfix.process.effects import ran

if TYPE_CHECKING:
    from dsfix.job import Job
    from dsfix.lab import Lab

_CHECKPOINTING = "deepspeed.runtime.activation_checkpointing.checkpointing"
_PARTITIONED = f"{_CHECKPOINTING}:get_partitioned_activations_for_backward"
_ON_CPU = f"{_CHECKPOINTING}:get_cpu_activations_for_backward"


def stand_ins(inputs: Sequence[Any], is_kept: Any) -> list[Any]:
    """The inputs of a checkpoint; an alias in place of each tensor that is about to be emptied."""
    ran(__name__)  # whether the model uses one again, nothing shows
    return [each.detach().requires_grad_(each.requires_grad) if is_kept(each) else each for each in inputs]


def with_data(inputs: Sequence[Any]) -> tuple[Any, ...]:
    """The inputs, each stand-in with the data that it keeps."""
    kept = [getattr(each, "saved_data", None) for each in inputs]
    return tuple(
        each if data is None else data.detach().requires_grad_(each.requires_grad) for each, data in zip(inputs, kept)
    )


def _meets(job: Job) -> bool:
    options = job.block("activation_checkpointing")
    return bool(options.get("partition_activations") or options.get("cpu_checkpointing"))


PATCH = Patch(
    title="partition_activations or cpu_checkpointing: inputs of a checkpointed function are overwritten with garbage",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0"},
    changes=(
        *(
            Edit(
                target,
                after="new_args = []",
                code="args = stand_ins(args, is_activation_to_checkpoint)",
                uses=(stand_ins,),
            )
            for target in (_PARTITIONED, _ON_CPU)
        ),
        Edit(
            f"{_CHECKPOINTING}:non_reentrant_checkpoint.<locals>.save_args_for_backward",
            before="tensor_args, non_tensor_args, tensor_flags = extract_tensors(all_objects=all_args)",
            code="all_args = with_data(all_args)",
            uses=(with_data,),
        ),
        Edit(  # without gradients, a copy on another device would not require one
            f"{_CHECKPOINTING}:gather_partitioned_activations",
            replace="item = item.to(device)",
            code="item = item.to(device).requires_grad_(item.requires_grad)",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/6969": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/217": "introduced",
        "https://github.com/deepspeedai/DeepSpeed/pull/4836": "related: an empty number since 0.12.6, the copy before",
        "https://github.com/deepspeedai/DeepSpeed/pull/8282": "related: non_reentrant_checkpoint, in 0.19.6",
    },
    present=(Source(_PARTITIONED, "new_args.append(arg)"), Source(_ON_CPU, "new_args.append(arg)")),
    config=_meets,
)


def reproduce(lab: Lab) -> str:
    from ._checkpointing import residual, train

    checkpointing = lab.deepspeed.checkpointing
    options = [{"partition_activations": True}, {"partition_activations": True, "checkpoint_in_cpu": True}]
    if not hasattr(checkpointing, "get_offloaded_activations_for_backward"):  # another patch's
        options.append({"checkpoint_in_cpu": True})
    functions = [name for name in ("checkpoint", "non_reentrant_checkpoint") if hasattr(checkpointing, name)]
    return "; ".join(train(lab, residual, function, each) for function in functions for each in options)
