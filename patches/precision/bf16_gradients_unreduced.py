"""bf16 without ZeRO, or with ZeRO-1 and fp32 accumulation: gradients are not averaged across ranks.

Why: BF16_Optimizer copies the gradients of each micro-batch into fp32. Through 0.13.2 the engine then averages the bf16
    gradients, which nothing reads any longer, and each rank updates its part of the weights from its own data only:
    with N ranks, a weight sees 1/N of the data. In these releases it is the optimizer for bf16 without ZeRO, and for
    ZeRO-1 with `data_types.grad_accum_dtype: "fp32"`; in both cases each rank keeps a part of the fp32 weights.
How: the engine averages the fp32 gradients. Not fixed: models with MoE layers, where the experts' gradients are
    averaged over other ranks.
Changes: with several ranks, the gradients and their norm cover all ranks' data. A checkpoint written without the patch
    can be resumed; its weights come from noisier gradients.
Workaround: None in the script; ZeRO-1 or ZeRO-2 with its usual accumulation dtype helps.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from dsfix.patch import Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_REDUCE = "deepspeed.runtime.engine:DeepSpeedEngine.allreduce_gradients"

PATCH = Patch(
    title="bf16 without ZeRO, or ZeRO-1 with fp32 accumulation: gradients are not averaged across ranks",
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
            effect="the fp32 gradients were averaged (unpatched: each rank uses its own)",
            when="isinstance(self.optimizer, BF16_Optimizer) and not self.has_moe_layers"
            " and dist.get_world_size(group=groups._get_sequence_data_parallel_group()) > 1",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/5170": "fixed in 0.13.3",
    },
    fixed_in="0.13.3",
    fixed=(Source(_REDUCE, "grads = self.optimizer.get_grads_for_reduction()"),),
    ranks=2,
    config=lambda job: job.may_be("bf16") and (job.stage == 0 or (job.stage == 1 and job.fp32_gradients)),
)

_LEARNING_RATE = 0.1
_MICRO_BATCHES = 2


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    torch = lab.torch
    models, reference = lab.models, lab.reference
    from .. import _half as half

    batches = [[models.regression_batch(rank, number) for number in range(_MICRO_BATCHES)] for rank in range(2)]

    def plain(*ranks: int) -> dict[str, Any]:
        step = [batch for rank in ranks for batch in batches[rank]]
        return half.train(models.MLP(), torch.bfloat16, [step], functools.partial(torch.optim.SGD, lr=_LEARNING_RATE))

    expected, first, second = plain(0, 1), plain(0), plain(1)
    reports = []
    for stage, accumulation in ((0, None), (1, "fp32")):
        config = {
            "train_micro_batch_size_per_gpu": len(batches[0][0][0]),
            "gradient_accumulation_steps": _MICRO_BATCHES,
            "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
            "bf16": {"enabled": True},
            "data_types": {"grad_accum_dtype": accumulation},
            "zero_optimization": {"stage": stage},
        }
        model = models.MLP()
        engine = lab.initialize(model, config, model_parameters=model.parameters())
        for inputs, targets in batches[lab.rank]:
            engine.backward(half.loss(engine, inputs, targets, next(model.parameters())))
            engine.step()

        parameters = lab.parameters(engine)
        parts = {  # each weight from the rank that it is closer to
            name: torch.where((own - first[name]).abs() < (own - second[name]).abs(), first[name], second[name])
            for name, own in parameters.items()
        }
        reports.append(
            reference.compare(
                parameters,
                expected,
                {"each from one rank's data alone": parts},
                within=0.01,
                after=f"ZeRO-{stage}: after a step of {_MICRO_BATCHES} micro-batches on 2 ranks",
            )
        )
    return "; ".join(reports)
