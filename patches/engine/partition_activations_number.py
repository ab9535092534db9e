"""partition_activations: the recomputation gets an additional None after each non-tensor argument.

Why: a checkpoint that partitions activations stores the size after each argument, or None if it is no tensor. Only the
    sizes are removed before the function is called again in the backward pass, not the Nones, so `checkpoint(f, x,
    2.0)` becomes f(x, 2.0, None): a TypeError, or another result if f takes it.
How: what is stored after each argument is removed, whatever the argument is. Calls with tensors only are unchanged.
Workaround: Scripts bind the argument to the function (functools.partial), pass it as a tensor, or give the function a
    parameter for the None. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_MERGE = "deepspeed.runtime.activation_checkpointing.checkpointing:merge_tensors"

PATCH = Patch(
    title="partition_activations: TypeError, a None is inserted after each non-tensor argument of a checkpoint",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.12.0"},
    changes=(
        Edit(
            _MERGE,
            after="real_tensor_flags = []",
            code="non_tensor_objects = non_tensor_objects[::2]",
            effect="the recomputation got no extra None after a non-tensor argument",
            when="len(non_tensor_objects) > 0",
        ),
        Edit(_MERGE, replace="previous_flag = flag", code="previous_flag = True"),
    ),
    symptom=r"takes \d+ positional arguments? but \d+ were given",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/834": "introduced",
        "https://github.com/deepspeedai/DeepSpeed/pull/8455": "proposed fix, open",
    },
    present=(Source(_MERGE, "if previous_flag:\n    ..."),),
    config=lambda job: bool(job.get("activation_checkpointing", "partition_activations")),
)


def reproduce(lab: Lab) -> str:
    from ._checkpointing import train

    def halved(checkpoint: Any, block: Any, x: Any) -> Any:
        return checkpoint(lambda x, factor: block(x) * factor, x, 0.5)

    return train(lab, halved, "checkpoint", {"partition_activations": True}, error="positional arguments but 3 were")
