"""bf16 or fp32 + ZeRO-1/2 + optimizer offload: RuntimeError for an inf or nan gradient, norm of int64.

Why: DeepSpeed's norm of a parameter group with a gradient that is inf or nan is -1. With optimizer offload it is an
    int, which 0.13.2 and later turn into a tensor, and torch has no norm of int64: "Expected a floating point or
    complex tensor as input. Got Long". fp16 finds inf and nan earlier; bf16 and fp32 do not check. The job crashes if
    every parameter group has such a gradient; usually there is only one group. With another group that has none, the -1
    becomes floating point, and the step is made. ZeRO-3 is not affected: through 0.12.6 its -1 is an int that never
    becomes a tensor, and since 0.13.0 it is floating point.
How: the -1 is a float, and the step is made, as in 0.13.1 and 0.17.1, as without offload and in PyTorch: weights whose
    gradient is inf or nan are so from then on, all others continue to train. The cause is not fixed: the 1st, 10th,
    100th … such norm logs a warning. In the norm that is reported and used for clipping such a group counts as 1.
Changes: none for a job that did not crash.
Workaround: Scripts leave out a micro-batch whose loss is not finite on some rank. You can keep it.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source
from dsfix.process.effects import ran

if TYPE_CHECKING:
    from dsfix.job import Job
    from dsfix.lab import Lab

_OPTIMIZER = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"
_NORM = f"{_OPTIMIZER}.complete_grad_norm_calculation_for_cpu_offload"


def warn() -> None:
    from dsfix.log import warn_repeatedly

    ran(__name__)
    warn_repeatedly(
        __name__,
        "zero12_offload_nonfinite_norm_long: a gradient is inf or nan, and the step is made, as without offload: the "
        "weights are not finite from now on. Stop the job, or resume from an earlier checkpoint",
    )


def _meets(job: Job) -> bool:
    return job.stage in (1, 2) and job.offloads_optimizer and job.on("fp16") is not True


PATCH = Patch(
    title="bf16 or fp32 + ZeRO-1/2 + optimizer offload: RuntimeError for an inf or nan gradient, norm of int64",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.13.2,<0.17.1"},
    changes=(
        Edit(
            _NORM,
            replace="total_norm = -1",
            code=f"total_norm = -1.0\nfrom {__name__} import warn\nwarn()",
            effect="the norm of gradients that are inf or nan was a float (unpatched: RuntimeError)",
            when="len(self.bit16_groups) == 1",  # otherwise finite groups hide the error
        ),
    ),
    symptom=r"in scaled_global_norm[\s\S]*floating point or complex[\s\S]*Got Long",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/5241": "reported",
        "https://github.com/huggingface/transformers/issues/34573": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/4974": "introduced in 0.13.2",
        "https://github.com/deepspeedai/DeepSpeed/pull/6976": "fixed in 0.17.1",
    },
    fixed_in="0.17.1",
    present=(
        Source(
            f"{_OPTIMIZER}.scaled_global_norm",
            "torch.tensor(self.complete_grad_norm_calculation_for_cpu_offload(self.params_in_partition[i]),"
            " device=self.device)",
        ),
    ),
    fixed=(Source(_NORM, "total_norm = -1.0"),),
    config=_meets,
)

_LEARNING_RATE = 0.1
_FACTORS = (0.0, float("inf"), 0.0)  # of each step, the gradient of the weight `apart`


def reproduce(lab: Lab) -> str:
    return "; ".join(_after_step(lab, stage, bf16) for stage, bf16 in ((2, True), (1, False)))


def _after_step(lab: Lab, stage: int, bf16: bool) -> str:
    torch = lab.torch
    steps = [(*lab.models.regression_batch(rank=0, step=step), factor) for step, factor in enumerate(_FACTORS)]
    parameters, skipped = _trained(lab, steps, stage, bf16, offload=True)
    if skipped:  # newer releases skip it
        steps = [step for step in steps if step[2] == 0.0]
    if bf16:
        reference, bound = "without offload", 5e-3
        expected, _ = _trained(lab, steps, stage, bf16, offload=False)
    else:
        reference, bound = "by plain PyTorch", 1e-4
        model = _model(lab)

        def loss(inputs: Any, targets: Any, factor: float) -> Any:
            return model.loss(inputs, targets) + factor * model.apart.sum()

        expected = lab.reference.train(model, [[step] for step in steps], loss, "SGD", lr=_LEARNING_RATE).parameters

    what = f"ZeRO-{stage}, {'bf16' if bf16 else 'fp32'}: the step with inf is {'skipped' if skipped else 'made'}"
    apart, expected_apart = parameters.pop("apart"), expected.pop("apart")
    assert torch.equal(apart, expected_apart), (
        f"{what}; got {apart.item()}, expected {expected_apart.item()} {reference}"
    )
    difference = lab.reference.largest_difference(parameters, expected)
    assert difference.relative < bound, f"{what}; {difference} {reference}"
    return f"{what}, all other weights match those {reference} within {difference.relative:.1e}"


def _model(lab: Lab) -> Any:
    """An MLP with a weight, `apart`, that it does not use."""
    model = lab.models.MLP()
    model.apart = lab.torch.nn.Parameter(lab.torch.zeros(1))
    return model


def _trained(lab: Lab, steps: Sequence[Any], stage: int, bf16: bool, offload: bool) -> tuple[dict[str, Any], int]:
    """The parameters, and the number of skipped steps."""
    torch = lab.torch
    model = _model(lab)
    config = {
        "train_micro_batch_size_per_gpu": len(steps[0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "bf16": {"enabled": bf16},
        "zero_optimization": {"stage": stage, "offload_optimizer": {"device": "cpu" if offload else "none"}},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for inputs, targets, factor in steps:
        outputs = engine(inputs.to(model.apart)).float()
        loss = torch.nn.functional.mse_loss(outputs, targets.to(lab.device))
        engine.backward(loss + factor * model.apart.float().sum())
        try:
            engine.step()
        except RuntimeError as error:
            passed = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
            if "Got Long" in str(error) and "scaled_global_norm" in passed:
                raise BugPresent(f"in scaled_global_norm: {str(error).splitlines()[0]}") from error
            raise
    return lab.parameters(engine), engine.skipped_steps
