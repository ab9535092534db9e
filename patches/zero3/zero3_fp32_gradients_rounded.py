"""ZeRO-3 that reduces and accumulates gradients in fp32: they are rounded to bf16 or fp16 in between.

Why: with `communication_data_type: "fp32"` gradients are averaged over the ranks in fp32, and with
    `data_types.grad_accum_dtype: "fp32"` accumulated in it. Between the two, ZeRO-3 casts the average to the dtype of
    the parameters: only 8 (bf16) or 11 (fp16) bits of each micro-batch's gradients remain. Nothing fails. Ulysses
    communicates in fp32 by default.
How: an average in fp32 that is accumulated in fp32 stays as it is, as in 0.19.2, which also takes less work. Jobs that
    communicate or accumulate in another dtype are cast as before; so are Muon's and ZenFlow's, which compute in that
    dtype. Through 0.12.4 `reduce_scatter: false` also reduces in the dtype of the parameters, which is left.
Changes: the gradients of such jobs in their last bits, up to 0.4% (bf16) or 0.05% (fp16) of an element. A checkpoint
    written without the patch loads; the job continues with exact gradients.
Workaround: None in the script; DeepSpeed 0.19.2 or ZeRO-1 helps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packaging.version import Version

from dsfix.patch import Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.job import Job
    from dsfix.lab import Lab

_OPTIMIZER = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3"
_SCATTER = f"{_OPTIMIZER}.__avg_scatter_grads"
_CONTIGUOUS = f"{_OPTIMIZER}.__avg_scatter_contiguous_grads"


def dtype_of_average(optimizer: Any, average: Any) -> Any:
    """The dtype in which ZeRO-3 goes on with an average over the ranks."""
    import torch

    other = getattr(optimizer, "zenflow", False) or getattr(optimizer, "use_muon", False)
    exact = average.dtype == optimizer.gradient_accumulation_dtype == torch.float32
    if exact and not other and optimizer.dtype != torch.float32 and optimizer.partition_count > 1:
        took_effect(__name__, "averaged gradients stayed in fp32 (unpatched: rounded to %s)", optimizer.dtype)
    return torch.float32 if exact and not other else optimizer.dtype


def _meets(job: Job) -> bool:
    return (
        job.stage == 3
        and job.half
        and job.fp32_gradients
        and job.get("communication_data_type") == "fp32"
        and job.optimizer != "muon"
    )


PATCH = Patch(
    title="ZeRO-3 with communication and accumulation in fp32: gradients are rounded to bf16 or fp16 in between",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.19.2"},
    changes=(
        Edit(
            _SCATTER,
            replace="grad_partitions_for_rank = [g.to(self.dtype) for g in grad_partitions_for_rank]",
            code="grad_partitions_for_rank = [g.to(dtype_of_average(self, g)) for g in grad_partitions_for_rank]",
            uses=(dtype_of_average,),
        ),
        Edit(
            _CONTIGUOUS,
            replace="buffer_to_reduce = buffer_to_reduce.to(self.dtype)",
            code="buffer_to_reduce = buffer_to_reduce.to(dtype_of_average(self, buffer_to_reduce))",
            uses=(dtype_of_average,),
        ),
        Edit(
            _CONTIGUOUS,
            replace="torch.zeros(param.partition_numel(), device=grad.device, dtype=grad.dtype)",
            code="torch.zeros(param.partition_numel(), device=grad.device, dtype=partition.dtype)",
        ),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/8056": "fixed in 0.19.2"},
    fixed_in="0.19.2",
    fixed=(
        Source(
            _SCATTER,
            "grad_partitions_for_rank = [g.to(self.gradient_accumulation_dtype) for g in grad_partitions_for_rank]",
        ),
    ),
    config=_meets,
    ranks=2,
)

_LEARNING_RATE, _ACCUMULATION = 0.25, 2


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    scattered = _one_step(lab, reduce_scatter=True)
    if Version(lab.deepspeed.__version__) < Version("0.12.5"):
        return scattered  # without reduce_scatter it does not communicate in fp32
    return f"with reduce-scatter {scattered}; with all-reduce {_one_step(lab, reduce_scatter=False)}"


def _one_step(lab: Lab, reduce_scatter: bool) -> str:
    torch, models = lab.torch, lab.models
    from deepspeed.utils import safe_get_full_fp32_param

    from .. import _half as half

    batches = [[models.regression_batch(rank, step) for step in range(_ACCUMULATION)] for rank in range(2)]
    model = models.MLP().to(lab.device, torch.bfloat16)
    before = {name: weight.detach().float() for name, weight in model.named_parameters()}
    right = {name: torch.zeros_like(weight) for name, weight in before.items()}
    rounded = {name: torch.zeros_like(weight) for name, weight in before.items()}
    for micro_batches in zip(*batches):
        means = {name: torch.zeros_like(weight) for name, weight in before.items()}
        for inputs, targets in micro_batches:
            model.zero_grad()
            (half.loss(model, inputs, targets, next(model.parameters())) / _ACCUMULATION).backward()
            for name, weight in model.named_parameters():
                means[name] += weight.grad.float() / 2
        for name, mean in means.items():
            right[name] += mean
            rounded[name] += mean.bfloat16().float()

    model = models.MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0][0]),
        "gradient_accumulation_steps": _ACCUMULATION,
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "bf16": {"enabled": True},
        "communication_data_type": "fp32",
        "data_types": {"grad_accum_dtype": "fp32"},
        "zero_optimization": {"stage": 3, "reduce_scatter": reduce_scatter},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for inputs, targets in batches[lab.rank]:
        engine.backward(half.loss(engine, inputs, targets, next(model.parameters())))
        engine.step()
    seen = {
        name: (before[name] - safe_get_full_fp32_param(weight).to(lab.device).view_as(before[name])) / _LEARNING_RATE
        for name, weight in model.named_parameters()
    }
    result: str = lab.reference.compare(
        seen,
        right,
        {"those that were rounded to bf16 after the reduction": rounded},
        after="after one step",
        what="the gradients",
    )
    return result
