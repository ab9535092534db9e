"""bf16 without ZeRO, or with ZeRO-1 and fp32 accumulation: no gradient is averaged over the ranks.

Why: BF16_Optimizer takes the gradients of each micro-batch into fp32. Up to 0.13.2 the engine then averages those in
    bf16, which nothing reads any more, and each rank updates its part of the weights by its own data alone: of N ranks'
    data an Nth counts. It is the optimizer of bf16 without ZeRO there, and of ZeRO-1 with
    `data_types.grad_accum_dtype: "fp32"`; both keep a part of the fp32 weights on each rank.
How: the engine averages the fp32 gradients. Not cured: a model with MoE layers, whose experts' gradients are averaged
    over other ranks.
Changes: with several ranks the gradients and their norm are those of all ranks' data. A checkpoint written without the
    patch resumes; its weights come from gradients with more noise.
Upstream: https://github.com/deepspeedai/DeepSpeed/pull/5170 (0.13.3).
Retire: when DeepSpeed 0.13.2 is no longer supported here.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_REDUCE = "deepspeed.runtime.engine:DeepSpeedEngine.allreduce_gradients"

PATCH = Patch(
    title="bf16 without ZeRO, or ZeRO-1 with fp32 accumulation: no gradient is averaged over the ranks",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.13.3"},
    changes=(
        Edit(
            _REDUCE,
            replace="self.buffered_allreduce_fallback(elements_per_buffer=bucket_size)",
            code="self.buffered_allreduce_fallback(\n"
            "    grads=self.optimizer.get_grads_for_reduction()\n"
            "    if isinstance(self.optimizer, BF16_Optimizer) and not self.has_moe_layers else None,\n"
            "    elements_per_buffer=bucket_size)",
        ),
    ),
    symptom="",
    upstream=("https://github.com/deepspeedai/DeepSpeed/pull/5170",),
    fixed_in="0.13.3",
    fixed=(Source(_REDUCE, "grads = self.optimizer.get_grads_for_reduction()"),),
    ranks=2,
)

_LEARNING_RATE = 0.1
_MICRO_BATCHES = 2


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    torch = lab.torch
    from dsfix.lab import half
    from dsfix.lab.models import MLP, regression_batch
    from dsfix.lab.reference import largest_difference

    batches = [[regression_batch(rank, number) for number in range(_MICRO_BATCHES)] for rank in range(lab.world_size)]

    def plain(*ranks: int) -> dict[str, Any]:
        step = [batch for rank in ranks for batch in batches[rank]]
        return half.train(MLP(), torch.bfloat16, [step], functools.partial(torch.optim.SGD, lr=_LEARNING_RATE))

    expected, first, second = plain(0, 1), plain(0), plain(1)
    largest = 0.0
    for stage, accumulation in ((0, None), (1, "fp32")):
        config = {
            "train_micro_batch_size_per_gpu": len(batches[0][0][0]),
            "gradient_accumulation_steps": _MICRO_BATCHES,
            "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
            "bf16": {"enabled": True},
            "data_types": {"grad_accum_dtype": accumulation},
            "zero_optimization": {"stage": stage},
        }
        model = MLP()
        engine = lab.initialize(model, config, model_parameters=model.parameters())
        for inputs, targets in batches[lab.rank]:
            engine.backward(half.loss(engine, inputs, targets, next(model.parameters())))
            engine.step()

        parameters = lab.parameters(engine)
        difference = largest_difference(parameters, expected)
        parts = {  # which of them a weight is part of
            name: torch.where((own - first[name]).abs() < (own - second[name]).abs(), first[name], second[name])
            for name, own in parameters.items()
        }
        done = f"stage {stage}: after a step of {_MICRO_BATCHES} micro-batches on 2 ranks"
        if largest_difference(parameters, parts).relative < 0.01 < difference.relative:
            raise BugPresent(f"{done} each weight is that of one rank's data: {difference}")
        assert difference.relative < 0.01, f"{done} {difference}"
        largest = max(largest, difference.relative)
    return f"stages 0 and 1: the weights are plain PyTorch's within {largest:.1e}"
