"""Weights that are copied to the CPU to be saved, as accelerate and transformers do without ZeRO-3."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job


@scenario(
    "weights, views of them, a shared one and a tensor of the CPU are copied to be saved, and training goes on",
    pinned=[{"stage": "2", "precision": "bf16"}, {"stage": "1", "offload": "optimizer"}],
    stage="012",
)
def copied_to_save(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(2):
        job.train(engine, step)
    if not job.plain:
        clone: Any = importlib.import_module("deepspeed.checkpoint.utils").clone_tensors_for_torch_save
        _copy(job, clone, engine.module.state_dict())
    for step in range(2, 4):
        job.train(engine, step)


def _copy(job: Job, clone: Any, weights: dict[str, Any]) -> None:
    name, weight = next(iter(weights.items()))
    more = {"a part": weight[1:3], "turned": weight.t(), "again": weight, "repeated": weight[:1].expand(4, -1)}
    given: Any = {"model": {**weights, **more}, "rest": [job.torch.arange(5.0), 3, name]}
    copies = clone(given)
    for each, tensor in copies["model"].items():
        assert job.torch.equal(tensor, given["model"][each].cpu()), each
        about = tensor.dtype, tensor.device, tensor.stride(), tensor.untyped_storage().nbytes(), tensor.requires_grad
        job.bits(f"copy of {each}", repr(about))
    assert copies["model"]["again"].data_ptr() != copies["model"][name].data_ptr()
    assert copies["rest"][0].data_ptr() != given["rest"][0].data_ptr()
    job.bits("rest", repr(copies["rest"][1:]))
