"""bf16 + ZeRO-1 + fp32 accumulation: one gradient that is inf or nan, or a step of zeros, ends the job.

Why: BF16_Optimizer, which bf16 gets with ZeRO-1 and `data_types.grad_accum_dtype: "fp32"`, up to 0.17.5 without ZeRO,
    too, and in a pipeline, asserts that the gradients' norm is above 0. A norm that is inf or nan comes as -1: one such
    gradient, of one micro-batch, and all ranks end in an AssertionError without a message. So does a step whose
    gradients are all 0, which is a step like any other.
How: a step whose norm is not finite is skipped, as 0.19.8 does: its gradients are dropped, it is counted in
    `skipped_steps`, and the learning rate's schedule waits. One whose norm is 0 is made.
Changes: none for a job that did not end; the norm that is reported of a skipped step is inf.
Upstream: as old as BF16_Optimizer, https://github.com/deepspeedai/DeepSpeed/pull/1801; 0.19.8 skips such a step.
Retire: when DeepSpeed 0.19.7 is no longer supported here.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_STEP = "deepspeed.runtime.bf16_optimizer:BF16_Optimizer.step"
_ASSERTION = "assert all_groups_norm > 0."

PATCH = Patch(
    title="bf16 + ZeRO-1 + fp32 accumulation: a step with inf, nan or all zero gradients: AssertionError",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.12.0,<0.19.8"},
    changes=(
        Edit(
            _STEP,
            replace=_ASSERTION,
            code="self.overflow = not 0.0 <= float(all_groups_norm) < float('inf')\n"
            "if self.overflow:\n"
            "    self._global_grad_norm = float('inf')\n"
            "    self.clear_hp_grads()\n"
            "    self.clear_lp_grads()\n"
            "    return",
        ),
    ),
    symptom=r"bf16_optimizer\.py[\s\S]*assert all_groups_norm > 0\.",
    upstream=("https://github.com/deepspeedai/DeepSpeed/pull/1801",),
    fixed_in="0.19.8",
    fixed=(Source(_STEP, "is_invalid_grad_norm(all_groups_norm)"),),
)


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    from dsfix.lab.models import MLP, regression_batch
    from dsfix.lab.reference import largest_difference

    batches = [regression_batch(rank=0, step=step) for step in range(3)]

    def trained(steps: Sequence[tuple[int, float]]) -> tuple[dict[str, Any], int]:
        """steps: the batch of each, and what its loss is multiplied by."""
        model = MLP()
        config = {
            "train_micro_batch_size_per_gpu": len(batches[0][0]),
            "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
            "bf16": {"enabled": True},
            "data_types": {"grad_accum_dtype": "fp32"},
            "zero_optimization": {"stage": 1},
        }
        engine = lab.initialize(model, config, model_parameters=model.parameters())
        for number, factor in steps:
            inputs, targets = batches[number]
            outputs = engine(inputs.to(lab.device, torch.bfloat16)).float()
            engine.backward(torch.nn.functional.mse_loss(outputs, targets.to(lab.device)) * factor)
            engine.step()
        return lab.parameters(engine), engine.skipped_steps

    expected, _ = trained([(0, 1.0), (1, 1.0), (2, 1.0)])
    try:
        parameters, skipped = trained([(0, 1.0), (1, float("inf")), (2, 0.0), (1, 1.0), (2, 1.0)])
    except AssertionError as error:
        if traceback.extract_tb(error.__traceback__)[-1].line == _ASSERTION:
            raise BugPresent("a gradient that is not finite ends the job: AssertionError in step") from error
        raise
    assert skipped == 1, f"{skipped} steps were skipped"
    difference = largest_difference(parameters, expected)
    assert difference.absolute == 0, f"{difference} from the run without these steps"
    return "inf is skipped, zeros are stepped: the parameters are, bit for bit, those of the run without these steps"
