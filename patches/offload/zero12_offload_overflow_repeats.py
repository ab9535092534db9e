"""ZeRO-1/2 + optimizer offload + fp32 accumulation: after one inf or nan step, all later steps are skipped.

Why: since 0.19.8 an fp16 or bf16 model with `data_types.grad_accum_dtype: "fp32"` adds its gradients up in a buffer in
    `averaged_gradients`. A normal step drops the buffer; one skipped because of inf or nan does so only without
    optimizer offload. With it, the next gradients are added to the inf, that step is skipped too, and so on to the end
    of the job: with bf16 silently, `skipped_steps` grows and no weight changes; with fp16 and a dynamic loss scale the
    scale is halved until "Current loss scale already at minimum" ends the job.
How: a skipped step drops the buffer, too. ZenFlow's overlapped step, which has its own code, is not covered.
Changes: the steps after a skipped one are made. A job that skips no step is unchanged. A checkpoint written without the
    patch loads, with the weights and the optimizer state of the last step before the first skipped one; its learning
    rate schedule is at that step, too. The batches since then were not trained on.
Workaround: Scripts leave out a micro-batch whose loss is not finite on some rank. You can keep it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.job import Job
    from dsfix.lab import Lab

_OPTIMIZER = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"


def _meets(job: Job) -> bool:
    return job.stage in (1, 2) and job.offloads_optimizer and job.fp32_gradients and job.half


PATCH = Patch(
    title="ZeRO-1/2 + optimizer offload + fp32 accumulation: after one inf or nan step, all later steps are skipped",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.19.8"},
    changes=(
        Edit(
            f"{_OPTIMIZER}.step",
            before="see_memory_usage('After overflow after clearing gradients')",
            # in place: the parameters' links to their gradients refer to this dict
            code="for i in self.averaged_gradients:\n    self.averaged_gradients[i] = None",
            effect="the gradients of a skipped step were dropped (unpatched: all later steps are skipped)",
            when="self.cpu_offload and any(each is not None for each in self.averaged_gradients.values())",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/8415": "related: a skipped step of bf16 is not logged",
    },
    present=(
        Source(
            f"{_OPTIMIZER}.copy_grads_in_partition",
            "self.cpu_offload and self._use_compact_grad_partition_buffer(group_idx)",
        ),
    ),
    config=_meets,
)

_LEARNING_RATE = 0.1
_MICRO_BATCHES = 2
_STEPS = 4
_SKIPPED = 1  # its first micro-batch gives inf


def reproduce(lab: Lab) -> str:
    return "; ".join(_after_skipped_step(lab, stage) for stage in (1, 2))


def _after_skipped_step(lab: Lab, stage: int) -> str:
    torch = lab.torch
    from .. import _half as half

    numbers = range(_STEPS * _MICRO_BATCHES)
    batches = [lab.models.regression_batch(rank=0, step=number) for number in numbers]
    steps = [batches[first : first + _MICRO_BATCHES] for first in numbers[::_MICRO_BATCHES]]
    made = [step for number, step in enumerate(steps) if number != _SKIPPED]
    optimizer = functools.partial(torch.optim.SGD, lr=_LEARNING_RATE)
    expected = half.train(lab.models.MLP(), torch.float16, made, optimizer)
    before = half.train(lab.models.MLP(), torch.float16, steps[:_SKIPPED], optimizer)
    inputs, targets = steps[_SKIPPED][0]
    steps[_SKIPPED][0] = inputs, targets * float("inf")

    model = lab.models.MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(inputs),
        "gradient_accumulation_steps": _MICRO_BATCHES,
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        # 0.17.1 to 0.19.2 check bf16 for inf only if configured; some older ones do not run bf16 with this torch
        "fp16": {"enabled": True, "loss_scale": 1},
        "data_types": {"grad_accum_dtype": "fp32"},
        "zero_optimization": {"stage": stage, "offload_optimizer": {"device": "cpu"}},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for step in steps:
        for inputs, targets in step:
            engine.backward(half.loss(engine, inputs, targets, next(model.parameters())))
            engine.step()

    parameters = lab.parameters(engine)
    difference = lab.reference.largest_difference(parameters, expected)
    stopped = lab.reference.largest_difference(parameters, before)
    skipped = f"ZeRO-{stage}: {engine.skipped_steps} of {_STEPS} steps skipped for one with inf"
    if engine.skipped_steps == _STEPS - _SKIPPED and stopped.relative < 5e-3 < difference.relative:
        raise BugPresent(f"{skipped}; after them {difference}")
    assert engine.skipped_steps == 1, skipped
    assert difference.relative < 5e-3, f"{skipped}; after them {difference}"
    return f"ZeRO-{stage}: the steps after a skipped one match plain PyTorch within {difference.relative:.1e}"
