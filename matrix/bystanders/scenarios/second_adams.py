"""Jobs with a second Adam, for weights on the GPU, which resume from a checkpoint."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dsfix.lab import half
from matrix.bystanders import space
from matrix.bystanders.scenario import scenario
from matrix.bystanders.scenarios import shards, twin_flow

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_ONCE: Any = {**twin_flow._HERE, "accumulation": ("1",), "clipping": ("off",), "partitioning": ("all",)}


@scenario("Twin-Flow, two groups at rates of their own, resumes from a checkpoint", **_ONCE)
def twin_flow_groups_resumed(job: Job) -> None:
    def make(seed: int) -> Any:
        model = job.MLP(seed=seed)
        groups = [
            {"params": list(model.blocks.parameters())},
            {"params": list(model.head.parameters()), "lr": 0.02, "weight_decay": 0.0},
        ]
        return twin_flow._engine(job, model, groups)

    job.resume(make)


@scenario("MiCS on one rank, with the optimizer offloaded, resumes from a checkpoint", **_ONCE)
def mics_offloaded_resumed(job: Job) -> None:
    def adam(given: list[Any]) -> Any:
        if job.plain:
            return job.torch.optim.AdamW(given, **space.ADAM)
        half.provide_fused_adam(job._lab)
        half.provide_cpu_adam(job._lab)
        return importlib.import_module("deepspeed.ops.adam").DeepSpeedCPUAdam(given, **space.ADAM)

    def make(seed: int) -> Any:
        model = shards._model(job)
        with job.torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + seed)
        options = {"mics_shard_size": 1, "sub_group_size": 100, "offload_optimizer": {"device": "cpu"}}
        return job.engine(model, None, adam, zero_optimization=options)

    if hasattr(job.torch, "compiler") and hasattr(job.torch.compiler, "set_stance"):
        job.torch.compiler.set_stance("force_eager")  # scaling the gradients is compiled on first use
    with shards._coalesced(job):
        job.resume(make)
