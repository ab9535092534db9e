"""bf16 + ZeRO-1 + fp32 accumulation: one gradient that is inf or nan, or a step of zeros, ends the job.

Why: BF16_Optimizer, which bf16 gets with ZeRO-1 and `data_types.grad_accum_dtype: "fp32"`, up to 0.17.5 without ZeRO,
    too, and in a pipeline, asserts that the gradients' norm is above 0. A norm that is inf or nan comes as -1: one such
    gradient, of one micro-batch, and all ranks end in an AssertionError without a message. So does a step whose
    gradients are all 0, which is a step like any other.
How: a step whose norm is not finite is skipped, as 0.19.8 does: its gradients are dropped, it is counted in
    `skipped_steps`, and the learning rate's schedule waits. One whose norm is 0 is made. A rank's norm leaves out the
    parameters that it did not use itself, though it has their gradients from the others: the ranks would not agree, and
    one wait for ever for the weights of one that skips. So these gradients' norm goes into the sum, too, times 0: that
    is nan where one of them is not finite, and else changes nothing. The 1st, 10th, 100th … skipped step is a warning,
    and so is such a step of zeros. With graph_harvesting, whose graphs keep the first step's tensors, the job ends as
    before.
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


def with_unused(optimizer: Any, gradients: Any) -> Any:
    """`gradients`, of which the norm is made, with a number for those that this rank left out: 0, or nan."""
    import torch

    plain, experts = gradients if isinstance(gradients, tuple) else (gradients, {})  # a tuple from 0.14.1 on
    if getattr(optimizer, "graph_harvesting", False) or not plain:
        return gradients  # without any gradient most releases end here: no backward pass by the engine, say
    for i, group in enumerate(optimizer.optimizer.param_groups):
        pairs = zip(optimizer.fp32_groups_gradients[i], optimizer.fp32_groups_has_gradients[i])
        unused = [gradient for gradient, used in pairs if gradient.numel() and not used]
        if unused:
            number = 0.0 * torch.stack(list(torch._foreach_norm(unused))).sum()
            experts.get(group.get("name"), plain).append(number)
    return gradients


def warn(skipped: bool) -> None:
    from dsfix.engine.log import warn_repeatedly

    what = "a gradient is inf or nan, the step is skipped" if skipped else "this rank's gradients are 0"
    warn_repeatedly(what, f"BF16_Optimizer: {what}; if that goes on, nothing is trained any more")


PATCH = Patch(
    title="bf16 + ZeRO-1 + fp32 accumulation: a step with inf, nan or all zero gradients: AssertionError",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.12.0,<0.19.8"},
    changes=(
        Edit(_STEP, after="if closure is not None:\n    ...", code=f"from {__name__} import warn, with_unused"),
        Edit(_STEP, replace="self.get_grads_for_norm()", code="with_unused(self, self.get_grads_for_norm())"),
        Edit(
            _STEP,
            replace=_ASSERTION,
            code="number = float(all_groups_norm)\n"
            "self.overflow = not 0.0 <= number < float('inf')\n"
            "if self.overflow:\n"
            "    assert not getattr(self, 'graph_harvesting', False)\n"
            "    warn(skipped=True)\n"
            "    self._global_grad_norm = float('inf')\n"
            "    self.clear_hp_grads()\n"
            "    self.clear_lp_grads()\n"
            "    return\n"
            "if number == 0.0:\n"
            "    warn(skipped=False)",
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
