"""Pipeline parallelism in fp32 without ZeRO: gradients are clipped by the first stage's norm only.

Why: a parameter counts in the norm only if the rank is the first of its model-parallel group, or if the parameter is
    split by tensor parallelism. For a pipeline that group has all stages: the other stages do not count, and gradients
    are clipped too little, or not at all. Nothing fails. Other jobs clip by the norm of all stages.
How: the rank is the tensor-parallel one, as in all other norms of DeepSpeed. Tied layers count once.
Changes: such pipelines of several stages that set `gradient_clipping`: their gradients are clipped more. A checkpoint
    written without the patch can be resumed.
Workaround: None
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_CLIP = "deepspeed.runtime.utils:clip_grad_norm_"
_COUNTS = "(mpu.get_model_parallel_rank() == 0) or is_model_parallel_parameter(p)"

PATCH = Patch(
    title="Pipeline parallelism in fp32 without ZeRO: gradients are clipped by the first stage's norm only",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0"},
    changes=(
        Edit(
            _CLIP,
            after="total_norm = 0",
            code="tensor_parallel_rank = bwc_tensor_model_parallel_rank(mpu)",
            effect=RAN,  # whether the norm exceeds the limit
            when="getattr(mpu, 'get_pipe_parallel_world_size', lambda: 1)() > 1",  # on the first stage, too
        ),
        Edit(
            _CLIP,
            replace=_COUNTS,
            code="not getattr(p, PIPE_REPLICATED, False)"
            " and (tensor_parallel_rank == 0 or is_model_parallel_parameter(p))",
        ),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/1333": "introduced"},
    present=(Source(_CLIP, _COUNTS),),
    config=lambda job: job.pipeline is True and job.stage == 0 and job.clips and not job.half,
    ranks=2,
)

_LEARNING_RATE, _CLIP_AT = 0.05, 0.1
_SHARED = "tied_modules.shared.weight"


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    torch = lab.torch
    from . import _pipeline as pipeline

    class Shared(torch.nn.Linear):  # type: ignore[name-defined,misc,unused-ignore]
        def __init__(self) -> None:
            super().__init__(16, 16, bias=False)
            with torch.no_grad():
                self.weight.copy_(torch.randn(16, 16, generator=torch.Generator().manual_seed(0)) / 4)

    def plain(counted: int) -> dict[str, Any]:
        """Clipped by the norm of the gradients of the first `counted` layers."""
        shared = Shared()
        model = torch.nn.Sequential(shared, pipeline.block(0), shared, pipeline.head())
        batches = iter(pipeline.batches())
        for _ in range(pipeline.STEPS):
            model.zero_grad()
            for _ in range(pipeline.MICRO_BATCHES):
                inputs, targets = next(batches)
                (torch.nn.functional.mse_loss(model(inputs), targets) / pipeline.MICRO_BATCHES).backward()
            norms = [parameter.grad.norm() for parameter in model[:counted].parameters()]
            factor = _CLIP_AT / torch.stack(norms).norm()
            assert factor < 1, factor
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= _LEARNING_RATE * factor * parameter.grad
        return {_SHARED if name == "0.weight" else name: each.detach() for name, each in model.named_parameters()}

    tied = lab.deepspeed.pipe.TiedLayerSpec("shared", Shared)
    layers: Any = [tied, pipeline.block(0), tied, pipeline.head()]
    engine = pipeline.train_layers(lab, layers, pipeline.batches(), {"gradient_clipping": _CLIP_AT}, _LEARNING_RATE)
    parameters = lab.parameters(engine)
    return lab.reference.compare(
        parameters,
        pipeline.of_stage(plain(4), parameters),
        {"those clipped by the norm of the first stage": pipeline.of_stage(plain(2), parameters)},
        after=f"after {pipeline.STEPS} steps",
        what="the parameters of both stages",
    )
