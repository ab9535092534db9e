"""ZeRO-2 with optimizer offload and `set_gradient_accumulation_boundary`: a pass is silently lost.

Why: as in zero2_offload_several_backwards, which adds the passes up where it is named: with
    `gradient_accumulation_steps` 1 nothing is kept of a pass that is not at the accumulation boundary.
How: at the first such pass rank 0 warns once, and says what to do. Numbers stay: what a script discards by
    `module.zero_grad()` cannot be told from what it means to add.
Workaround: Scripts add the losses up, and call `backward` once. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import Edit, Patch, Severity, Source
from dsfix.process.effects import ran

from .._warn_once import warn_once

if TYPE_CHECKING:
    from dsfix.lab import Lab

_COPY = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.copy_grads_in_partition"


def warn() -> None:
    """In a pass of which nothing is kept."""
    ran(__name__)
    warn_once(
        __name__,
        "a backward pass was not at the accumulation boundary; with ZeRO-2, optimizer offload and "
        "gradient_accumulation_steps 1, this DeepSpeed discards it. To keep its gradients, add the losses and call "
        "engine.backward once, or set gradient_accumulation_steps to the number of passes",
    )


PATCH = Patch(
    title="ZeRO-2 + optimizer offload + set_gradient_accumulation_boundary: a pass is lost (the patch only warns)",
    severity=Severity.USABILITY,
    affects={"deepspeed": ">=0.12.0,<0.19.0"},
    changes=(
        Edit(
            _COPY,
            after="if self.is_gradient_accumulation_boundary:\n    ...",
            code="if not (self.is_gradient_accumulation_boundary or self.gradient_accumulation_steps > 1\n"
            "        or getattr(self, 'zenflow', False)):\n    warn()",
            uses=(warn,),
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7981": "fixed in 0.19.0",
    },
    fixed_in="0.19.0",
    fixed=(
        Source(_COPY, "self.micro_step_id > 0 or not self.is_gradient_accumulation_boundary"),
        Source(_COPY, "self.micro_step_id > 0 or not self.is_gradient_accumulation_boundary()"),  # since 0.19.5
    ),
)


def reproduce(lab: Lab) -> str:
    from ._several_backwards import told

    return told(lab, __name__.rpartition(".")[2], boundary=True)
