"""ZeRO-1 and ZeRO-2: all but the last backward pass of a step are silently lost.

Why: as in zero12_several_backwards_drop, which adds the passes up where it is named. Since 0.18.3 there is no error:
    the last pass of a step takes the place of the earlier ones.
How: at the first such pass rank 0 warns once, and says what to do. Numbers stay: a script that means to discard the
    earlier pass cannot be told from one that means to add it. Only passes of `engine.backward` are seen. With
    optimizer offload: zero12_offload_several_backwards_untold.
Workaround: Scripts add the losses up, and call `backward` once. You can keep it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source
from dsfix.process.effects import ran

from .._warn_once import warn_once
from ._passes import FILL, RATE, described, is_own, steps_of, train

if TYPE_CHECKING:
    from dsfix.lab import Lab

_EPILOGUE = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.independent_gradient_partition_epilogue"


def warn_of_lost(optimizer: Any, group: int) -> None:
    """At the boundary, where a group's gradients of an earlier pass are about to be replaced."""
    if optimizer.averaged_gradients.get(group) is None or not is_own(optimizer):
        return
    ran(__name__)
    warn_once(
        __name__,
        "there was a second backward pass before a step; DeepSpeed keeps only the gradients of the last one. To add "
        "them up, add the losses and call engine.backward once, or call "
        "engine.set_gradient_accumulation_boundary(False) before every pass except the last, and (True) before the "
        "last. If you meant to discard the earlier pass, ignore this",
    )


PATCH = Patch(
    title="ZeRO-1/2: all but the last backward pass before a step are lost (the patch only warns)",
    severity=Severity.USABILITY,
    affects={"deepspeed": ">=0.18.3"},
    changes=(Edit(_EPILOGUE, before=FILL, code="warn_of_lost(self, i)", uses=(warn_of_lost,)),),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7665": "introduced in 0.18.3",
    },
    present=(
        Source(_EPILOGUE, FILL),
        Source(_EPILOGUE, "i not in self.all_grad_tensors or self.all_grad_tensors[i] is None"),
    ),
)


def reproduce(lab: Lab) -> str:
    from .._messages import Messages

    steps = steps_of(lab)
    model = lab.models.MLP()
    last_only = lab.reference.train(model, [step[-1:] for step in steps], model.loss, "SGD", lr=RATE).parameters
    warnings = Messages(logging.WARNING)
    logging.getLogger("dsfix").addHandler(warnings)
    for stage in (1, 2):
        try:
            parameters = train(lab, steps, stage, forwards=len(steps[0]))
        except TypeError as error:
            return f"{described(stage, len(steps[0]))}: {error}"
        lost = lab.reference.largest_difference(parameters, last_only).relative < 1e-5
        if lost and not any("zero12_several_backwards_untold" in each for each in warnings.lines):
            raise BugPresent(f"{described(stage, len(steps[0]))}: only the last of each is used, without a warning")
    return "a step that loses a backward pass says so" if lost else "no backward pass is lost"
