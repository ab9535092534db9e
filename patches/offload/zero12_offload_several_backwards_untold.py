"""ZeRO-1 and ZeRO-2 with optimizer offload: an earlier backward pass of a step is lost, and nothing says so.

Why: as in zero12_offload_several_backwards_drop, which adds the passes up where it is named: the last pass of a step
    overwrites the gradients that the earlier ones have copied to the CPU.
How: at the first such copy rank 0 warns once, and says what to do. Numbers stay: a script that means to discard the
    earlier pass cannot be told from one that means to add it.
Workaround: Scripts add the losses up, and call `backward` once. That can stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import Edit, Patch, Severity, Source
from dsfix.process.effects import ran

from .._told import tell

if TYPE_CHECKING:
    from dsfix.lab import Lab

_NORM = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.set_norm_for_param_grad_in_gpu"


def warn() -> None:
    """Where the norm of a gradient that waits for the step is about to be replaced, as the gradient will be."""
    ran(__name__)
    tell(
        __name__,
        "a second backward pass before a step, and with optimizer offload DeepSpeed keeps only the gradients of the "
        "last one. To add them up, add the losses and call engine.backward once. If the earlier one was to be "
        "discarded, all is well",
    )


PATCH = Patch(
    title="ZeRO-1/2 + optimizer offload: only the last backward pass before a step counts, and nothing says so",
    severity=Severity.USABILITY,
    affects={"deepspeed": ">=0.12.0"},
    changes=(
        Edit(
            _NORM,
            after="param_id = self.get_param_id(param)",
            code="if param_id in self.norm_for_param_grads:\n    warn()",
            uses=(warn,),
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7981": "related: passes before the boundary, 0.19.0",
    },
    present=(
        Source(
            "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.async_inplace_copy_grad_to_fp32_buffer_from_gpu",
            "dest_tensor.copy_(src_tensor, non_blocking=True)",
        ),
    ),
)


def reproduce(lab: Lab) -> str:
    from ._several_backwards import told

    return told(lab, __name__.rpartition(".")[2], boundary=False)
