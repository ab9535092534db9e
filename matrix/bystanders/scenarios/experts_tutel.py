"""DeepSpeed's MoE layer with Tutel, for which plain PyTorch stands in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario
from matrix.bystanders.scenarios import experts

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_TOP_1: Any = {**experts._FITS, "precision": ("fp32",)}


def _model(job: Job) -> Any:
    from dsfix.lab.experts import provide_tutel

    if not job.plain:
        provide_tutel(job._lab)
    return experts._model(job, 1, experts._EXPERTS, use_tutel=True)


@scenario("Tutel dispatches tokens to experts, with capacity for all", pinned=[{"stage": "1"}], **_TOP_1)
def experts_of_tutel(job: Job) -> None:
    experts._trained(job, _model(job))


@scenario(
    "Tutel dispatches tokens to experts of two tensor-parallel ranks, with capacity for all",
    pinned=[{"stage": "0"}],
    **{**_TOP_1, "stage": "0", "ranks": ("2",), "accumulation": ("1",), "optimizer": ("SGD",), "clipping": ("off",)},
)
def experts_of_tutel_tensor_parallel(job: Job) -> None:
    """The layer's output of the same batches on both ranks."""
    from dsfix.lab.experts import tensor_parallel
    from dsfix.lab.models import regression_batch

    model = _model(job)
    found: Any = model.to(job.device) if job.plain else tensor_parallel(job._lab, model)
    for number in range(2):
        inputs, _ = regression_batch(0, number)
        with job.torch.no_grad():
            job.note(f"output {number}", found(inputs.to(job.device)))
