"""A pipeline in bf16 that also accumulates gradients in bf16 never changes its weights.

Why: BF16_Optimizer updates weights in fp32. It assigned their gradients once, when it was created; if gradients are
    accumulated in another dtype (`data_types.grad_accum_dtype: "bf16"`), these were copies, and 0.12.5 removes them
    again. So no step finds gradients, and the optimizer skips all weights. The loss never falls. Only pipelines may use
    this optimizer with that dtype.
How: before the step, the weights get the accumulated gradients in fp32; after it, these are removed again.
Changes: such a job trains. A checkpoint written without the patch has the initial weights: start over.
Workaround: Scripts wrap the inner optimizer's `step` to give the fp32 weights their gradients, or leave
    `grad_accum_dtype` out. You can keep it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from dsfix.patch import CannotTell, Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.job import Job
    from dsfix.lab import Lab

_OPTIMIZER = "deepspeed.runtime.bf16_optimizer:BF16_Optimizer"


def give_gradients(optimizer: Any) -> None:
    """Gives the fp32 weights the accumulated gradients, unless these are in fp32: then the weights have them."""
    for weights, gradients in zip(optimizer.fp32_groups_flat_partition, optimizer.fp32_groups_gradient_flat_partition):
        if gradients.dtype != weights.dtype:
            took_effect(__name__, "weights got their gradients (unpatched: they never change)")
            weights.grad = gradients.to(weights.dtype)


def take_gradients(optimizer: Any) -> None:
    """Takes them away again."""
    for weights, gradients in zip(optimizer.fp32_groups_flat_partition, optimizer.fp32_groups_gradient_flat_partition):
        if gradients.dtype != weights.dtype:
            weights.grad = None


def _meets(job: Job) -> bool:
    accumulated = job.get("data_types", "grad_accum_dtype", default=None)
    return bool(job.pipeline) and job.may_be("bf16") and accumulated in ("bf16", "bfloat16")


PATCH = Patch(
    title="Pipeline parallelism in bf16 with grad_accum_dtype bf16: the weights never change",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.5,<0.15.1"},
    changes=(
        Edit(
            f"{_OPTIMIZER}.step",
            before="self.optimizer.step()",
            code="give_gradients(self)",
            uses=(give_gradients,),
        ),
        Edit(
            f"{_OPTIMIZER}.step",
            after="self.optimizer.step()",
            code="take_gradients(self)",
            uses=(take_gradients,),
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/4713": "introduced in 0.12.5",
        "https://github.com/deepspeedai/DeepSpeed/pull/6485": "fixed in 0.15.1",
    },
    fixed_in="0.15.1",
    present=(
        Source(
            f"{_OPTIMIZER}.initialize_optimizer_states",
            "if self.grad_acc_dtype is not torch.float32:\n"
            "    for param_partition in self.fp32_groups_flat_partition:\n"
            "        param_partition.grad = None",
        ),
    ),
    fixed=(
        Source(
            f"{_OPTIMIZER}.step",
            "if self.grad_acc_dtype is not torch.float32:\n"
            "    for param_partition in self.fp32_groups_flat_partition:\n"
            "        param_partition.grad = None",
        ),
    ),
    config=_meets,
    ranks=2,
)

_LEARNING_RATE = 0.05


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    torch = lab.torch
    from .. import _half as half
    from . import _pipeline as pipeline

    batches = pipeline.batches()
    steps = [batches[: pipeline.MICRO_BATCHES], batches[pipeline.MICRO_BATCHES :]]

    def plain(learning_rate: float) -> Any:
        optimizer = functools.partial(torch.optim.SGD, lr=learning_rate)
        model = torch.nn.Sequential(*pipeline.layers())
        return half.train(model, torch.bfloat16, steps, optimizer, accumulation=torch.bfloat16)

    config = {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "bf16"}}
    inputs = [(each.to(torch.bfloat16), targets) for each, targets in batches]
    try:
        engine = pipeline.train_layers(lab, pipeline.layers(), inputs, config, _LEARNING_RATE)
    except NotImplementedError as error:
        raise CannotTell(f"through 0.12.4 the engine refuses such a job: {error}") from error
    found = lab.parameters(engine)
    return lab.reference.compare(
        found,
        pipeline.of_stage(plain(_LEARNING_RATE), found),
        {"those that it began with": pipeline.of_stage(plain(0.0), found)},
        within=0.01,
        after=f"after {pipeline.STEPS} steps",
    )
