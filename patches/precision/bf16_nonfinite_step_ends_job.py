"""bf16 + ZeRO-1 + fp32 accumulation: one inf or nan gradient, or a step of all-zero gradients, crashes the job.

Why: BF16_Optimizer (bf16 with ZeRO-1 and `data_types.grad_accum_dtype: "fp32"`, through 0.17.5 also bf16 without ZeRO,
    and bf16 in a pipeline) asserts that the gradient norm is above 0. A norm that is inf or nan is returned as -1: one
    such gradient in one micro-batch stops all ranks with an AssertionError without a message. So does a step whose
    gradients are all 0, although it is a step like any other.
How: a step with a non-finite norm is skipped, as in 0.19.8: its gradients are dropped, `skipped_steps` counts it, the
    learning rate schedule waits, and the 1st, 10th, 100th … logs a warning. A step with a norm of 0 is taken, with the
    same warnings. All ranks agree, because a rank's norm includes the gradients of parameters that it did not use. With
    graph_harvesting the job still crashes.
Changes: none for a job that did not crash; the reported norm of a skipped step is inf.
Workaround: Scripts leave out a micro-batch whose loss is not finite on some rank. You can keep it.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_STEP = "deepspeed.runtime.bf16_optimizer:BF16_Optimizer.step"
_ASSERTION = "assert all_groups_norm > 0."


def with_unused(optimizer: Any, gradients: Any) -> Any:
    """The gradients whose norm is taken, plus one number for those that this rank did not use: 0 or nan."""
    import torch

    plain, experts = gradients if isinstance(gradients, tuple) else (gradients, {})  # a tuple since 0.14.1
    if getattr(optimizer, "graph_harvesting", False) or not plain:
        return gradients  # with no gradient at all, e.g. no backward pass by the engine, most releases fail here
    for i, group in enumerate(optimizer.optimizer.param_groups):
        pairs = zip(optimizer.fp32_groups_gradients[i], optimizer.fp32_groups_has_gradients[i])
        unused = [gradient for gradient, used in pairs if gradient.numel() and not used]
        if unused:
            number = 0.0 * torch.stack(list(torch._foreach_norm(unused))).sum()
            experts.get(group.get("name"), plain).append(number)
    return gradients


def warn(skipped: bool) -> None:
    from dsfix.log import warn_repeatedly

    if skipped:
        took_effect(__name__, "a step with inf or nan gradients was skipped (unpatched: AssertionError)")
    else:
        took_effect(__name__, "a step with all-zero gradients was made (unpatched: AssertionError)")
    what = "a gradient is inf or nan, the step is skipped" if skipped else "this rank's gradients are 0"
    warn_repeatedly(what, f"bf16_nonfinite_step_ends_job: {what}. If this continues, the model is not training")


PATCH = Patch(
    title="bf16 + ZeRO-1 + fp32 accumulation: AssertionError in a step with inf, nan or all-zero gradients",
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
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/1801": "introduced",
    },
    fixed_in="0.19.8",
    fixed=(Source(_STEP, "is_invalid_grad_norm(all_groups_norm)"),),
)


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(3)]

    def trained(steps: Sequence[tuple[int, float]]) -> tuple[dict[str, Any], int]:
        """Parameters and skipped steps; steps: the number of each step's batch, and the factor of its loss."""
        model = lab.models.MLP()
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
            raise BugPresent("a non-finite gradient crashes the job: AssertionError in step") from error
        raise
    assert skipped == 1, f"expected 1 skipped step, got {skipped}"
    difference = lab.reference.largest_difference(parameters, expected)
    assert difference.absolute == 0, f"compared with a run without these steps {difference}"
    return "inf is skipped, zeros are a step: the parameters match a run without these steps bit for bit"
