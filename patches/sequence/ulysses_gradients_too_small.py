"""Ulysses sequence parallelism without ZeRO: gradients are too small by a factor of the sequence-parallel size.

Why: ranks that share a sequence each have a part of its gradient, so their gradients must be added, and only the sums
    of different sequences averaged. ZeRO-1 and ZeRO-2 do so; without ZeRO, and with DeepSpeed's bf16 optimizer at
    ZeRO-1, releases through 0.14.2 divide by the number of all these ranks. With SGD the learning rate is too small by
    that factor; with Adam clipping and the gradient norm are wrong. Nothing fails.
How: after the exchange the gradients are multiplied by the sequence-parallel size. Gradients of experts and sparse ones
    are unchanged (the latter are right), as is the pipeline, and no other job changes.
Changes: jobs with an `mpu` that has a sequence-parallel size above 1 and without ZeRO, or with bf16 and ZeRO-1 and
    fp32 accumulation. A checkpoint loads; a learning rate that was raised to make up for the bug has to be lowered.
Workaround: Scripts that multiply the loss, the gradients or, with SGD, the learning rate by the sequence-parallel size
    have to stop: this cannot be distinguished from intended scaling. `engine.gradient_average = False`, which makes the
    engine add gradients up, can stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
_REDUCED = "self._reduce_non_expert_gradients(non_expert_grads, elements_per_buffer)"


def add_of_sequence(engine: Any, gradients: list[Any]) -> None:
    """Undoes the division by the sequence-parallel size of averaged gradients."""
    if engine.sequence_parallel_size <= 1 or engine.pipeline_parallelism:
        return
    if engine.postscale_gradients() and not engine.gradient_average:  # a script can ask for sums
        return
    import torch

    dense = [each for each in gradients if isinstance(each, torch.Tensor) and not each.is_sparse]
    if dense:
        took_effect(__name__, "gradients of ranks that share a sequence were added (unpatched: averaged)")
    for each in dense:
        each.mul_(engine.sequence_parallel_size)


PATCH = Patch(
    title="Ulysses without ZeRO: gradients are too small by a factor of the sequence-parallel size",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.14.3"},
    changes=(
        Edit(
            f"{_ENGINE}.buffered_allreduce_fallback",
            after=_REDUCED,
            code="add_of_sequence(self, non_expert_grads)",
            uses=(add_of_sequence,),
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/4198": "introduced in 0.10.2",
        "https://github.com/deepspeedai/DeepSpeed/pull/5555": "fixed in 0.14.3",
    },
    fixed_in="0.14.3",
    # not corrected in another place
    present=(
        Source(f"{_ENGINE}.buffered_allreduce_fallback", f"{_REDUCED}\nif self.has_moe_layers:\n    ..."),
        Source(
            f"{_ENGINE}._reduce_non_expert_gradients",
            "if self.pipeline_parallelism:\n    dp_group = self.mpu.get_data_parallel_group()\n"
            "else:\n    dp_group = groups._get_sequence_data_parallel_group()",
        ),
    ),
    fixed=(
        Source(
            f"{_ENGINE}._reduce_non_expert_gradients",
            "dp_world_size = dist.get_world_size(dp_group) / float(self.sequence_parallel_size)",
        ),
    ),
    ranks=2,
)

_LEARNING_RATE, _STEPS = 0.05, 3


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    torch, models, reference = lab.torch, lab.models, lab.reference
    from ._ulysses import OneSequence

    steps = [[models.regression_batch(rank, step) for rank in range(2)] for step in range(_STEPS)]

    def plain(times: int) -> dict[str, Any]:
        """times: what the mean of the ranks' gradients is multiplied by."""
        model = models.MLP()
        found: dict[str, Any] = reference.train(
            model, steps, lambda *batch: model.loss(*batch) * times, "SGD", lr=_LEARNING_RATE
        ).parameters
        return found

    right, wrong = plain(2), plain(1)
    groups = OneSequence(lab)
    reports = []
    for stage in (1, 0):
        model = models.MLP()
        config = {
            "train_micro_batch_size_per_gpu": len(steps[0][0][0]),
            "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
            "zero_optimization": {"stage": stage},
        }
        engine = lab.initialize(model, config, model_parameters=model.parameters(), mpu=groups)
        for batches in steps:
            inputs, targets = (each.to(lab.device) for each in batches[lab.rank])
            engine.backward(torch.nn.functional.mse_loss(engine(inputs), targets))
            engine.step()
        try:
            told = reference.compare(
                lab.parameters(engine), right, {"those of half the gradients": wrong}, after=f"after {_STEPS} steps"
            )
        except BugPresent as error:
            if stage == 1:
                raise AssertionError(f"ZeRO-1: {error}") from error
            raise
        reports.append(f"{f'ZeRO-{stage}' if stage else 'without ZeRO'}: {told}")
    return "; ".join(reports)
