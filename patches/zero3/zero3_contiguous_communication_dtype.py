"""ZeRO-3 with `reduce_scatter: false`: `communication_data_type` is ignored.

Why: with `reduce_scatter: false` and contiguous gradients ZeRO-3 averages a whole bucket. The test whether to cast it
    to `communication_data_type` is reversed: it is cast if that already is the model's dtype. A job in bf16 that asks
    for fp32 (or has it from sequence parallelism) adds up its ranks' gradients in bf16, with an error that grows with
    the ranks; in fp16 they can overflow. Nothing fails.
How: casts the bucket if its dtype differs, as in 0.12.5 and later; the average is cast back by the code that is there.
    It costs a copy of the bucket in that dtype, as `reduce_scatter: true` does.
Changes: jobs with ZeRO-3, `reduce_scatter: false` and another `communication_data_type` than the model's: gradients
    have the requested precision, as with `reduce_scatter: true`, also when a job resumes from a checkpoint written
    without the patch.
Workaround: None in the script; `reduce_scatter: true` helps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import Edit, Patch, Severity

if TYPE_CHECKING:
    from dsfix.job import Job
    from dsfix.lab import Lab

_AVERAGE = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3.__avg_scatter_contiguous_grads"


def _meets(job: Job) -> bool:
    zero = job.block("zero_optimization")
    whole_buckets = zero.get("reduce_scatter") is False and zero.get("contiguous_gradients") is not False
    own = "fp16" if job.on("fp16") else "bfp16" if job.on("bf16") else "fp32"
    return job.stage == 3 and whole_buckets and job.get("communication_data_type", default=own) != own


PATCH = Patch(
    title="ZeRO-3 + reduce_scatter false: communication_data_type is ignored; averages are in half precision",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.12.5"},
    changes=(
        Edit(
            _AVERAGE,
            replace="self.communication_data_type == self.dtype",
            code="self.communication_data_type != dtype",
            effect="gradients were averaged in communication_data_type",
            when="self.communication_data_type not in (dtype, self.dtype)",
        ),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/4540": "fixed in 0.12.5"},
    fixed_in="0.12.5",
    config=_meets,
    ranks=2,
)

_PREDIVIDE = 3.0  # a factor whose division is rounded
_SIZE = 64


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    torch = lab.torch
    drawn = [torch.randn(4 * _SIZE, generator=torch.Generator().manual_seed(rank)).bfloat16() for rank in range(2)]
    mean = (drawn[0].double() + drawn[1].double()) / 2
    # halfway between two numbers of bf16 the last bit in fp32 decides, and a GPU divides otherwise
    clear = ((1 + 1e-5) * mean).bfloat16() == ((1 - 1e-5) * mean).bfloat16()
    given = [each[clear][:_SIZE] for each in drawn]

    class Model(torch.nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
        """Its gradient is its input."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(_SIZE))

        def forward(self, inputs: Any) -> Any:
            return (self.weight * inputs).sum()

    def stepped(dtype: Any) -> dict[str, Any]:
        """The weights after a step of size 1 against the average in this dtype."""
        first, second = (each.to(dtype) / _PREDIVIDE / 2 for each in given)
        return {"weight": -((first + second) * _PREDIVIDE).bfloat16()}

    model = Model()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "SGD", "params": {"lr": 1.0}},
        "zero_optimization": {"stage": 3, "reduce_scatter": False},
        "bf16": {"enabled": True},
        "communication_data_type": "fp32",
        "gradient_predivide_factor": _PREDIVIDE,
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    engine.backward(engine(given[lab.rank].to(lab.device)))
    engine.step()
    return lab.reference.compare(
        lab.parameters(engine),
        stepped(torch.float32),
        {"those of an average in bf16": stepped(torch.bfloat16)},
        within=1e-5,
        after="after a step",
    )
