"""ZeRO-1 and ZeRO-2 with optimizer offload: all but the last backward pass of a step are silently lost.

Why: as in zero12_offload_several_backwards_drop, which adds the passes up where it is named: the last pass of a step
    overwrites the gradients that the earlier ones have copied to the CPU.
How: at the first such copy rank 0 warns once, and says what to do, unless `engine.zero_grad()` or `load_checkpoint` was
    called in between. Numbers stay: what a script discards by `module.zero_grad()` or `.grad = None` cannot be told
    from what it means to add.
Workaround: Scripts add the losses up, and call `backward` once. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import Edit, Patch, Severity, Source
from dsfix.process.effects import ran

from .._warn_once import warn_once

if TYPE_CHECKING:
    from dsfix.lab import Lab

_NORM = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.set_norm_for_param_grad_in_gpu"
_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"


def warn(optimizer: Any, param_id: int) -> None:
    """Where the norm of a gradient that waits for the step is about to be replaced, as the gradient will be."""
    if param_id in optimizer.__dict__.get("_dsfix_discarded", ()):
        optimizer._dsfix_discarded.remove(param_id)
        return
    ran(__name__)
    warn_once(
        __name__,
        "there was a second backward pass before a step; with optimizer offload DeepSpeed keeps only the gradients of "
        "the last one. To add them up, add the losses and call engine.backward once. If you meant to discard the "
        "earlier pass, ignore this",
    )


def discard(optimizer: Any) -> None:
    """What waits for the step is not wanted: it may be replaced without a warning."""
    if hasattr(optimizer, "norm_for_param_grads"):
        optimizer._dsfix_discarded = set(optimizer.norm_for_param_grads)


PATCH = Patch(
    title="ZeRO-1/2 + optimizer offload: all but the last backward pass before a step are lost (the patch only warns)",
    severity=Severity.USABILITY,
    affects={"deepspeed": ">=0.12.0"},
    changes=(
        Edit(
            _NORM,
            after="param_id = self.get_param_id(param)",
            code="if param_id in self.norm_for_param_grads:\n    warn(self, param_id)",
            uses=(warn,),
        ),
        Edit(
            f"{_ENGINE}.zero_grad",
            before="for param_name, param in self.module.named_parameters():\n    ...",
            code="discard(self.optimizer)",
            uses=(discard,),
        ),
        Edit(
            f"{_ENGINE}.load_checkpoint",
            before="if self._optimizer_has_ckpt_event_prologue():\n    ...",
            code="discard(self.optimizer)",
            uses=(discard,),
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
