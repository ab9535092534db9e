"""bf16 or fp16 with BatchNorm: "expected scalar type BFloat16 but found Float".

Why: since 0.19.2 the engine casts parameters and leaves buffers in fp32, so a BatchNorm has half weights and fp32
    statistics. On the CPU torch rejects this in the forward pass, in training and in evaluation; on CUDA, by torch's
    source, in the backward pass through a contiguous input. Not affected: layers without weights, InstanceNorm, and
    jobs that set `data_types.buffer_dtype` to the model's dtype.
How: torch's `_BatchNorm.forward` uses its weight and bias in fp32 where they are half and the statistics fp32, the
    dtypes that it has under autocast. Statistics stay fp32 and parameters half, as since 0.19.2. Casting the statistics
    would round them in jobs that work on CUDA (evaluation, channels-last). It costs two casts of one number per
    channel in each forward pass of such a layer. SyncBatchNorm has a forward pass of its own, which is unchanged.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_FORWARD = "torch.nn.modules.batchnorm:_BatchNorm.forward"
_CONFIGURE = "deepspeed.runtime.engine:DeepSpeedEngine._configure_distributed_model"


def parameters(layer: Any) -> tuple[Any, Any]:
    """The layer's weight and bias: in fp32 where they are half and its statistics fp32, otherwise as they are."""
    import torch

    weight, bias, statistics = layer.weight, layer.bias, layer.running_mean
    half = weight is not None and weight.dtype in (torch.bfloat16, torch.float16)
    if half and statistics is not None and statistics.dtype == torch.float32:
        return weight.float(), None if bias is None else bias.float()
    return weight, bias


PATCH = Patch(
    title="bf16 or fp16 with BatchNorm: expected scalar type BFloat16 but found Float",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.19.2"},
    changes=(
        Edit(
            _FORWARD,
            after="self._check_input_dim(input)",
            code="weight, bias = parameters(self)",
            uses=(parameters,),
        ),
        Edit(_FORWARD, replace="self.weight", code="weight"),
        Edit(_FORWARD, replace="self.bias", code="bias"),
    ),
    symptom=r"in batch_norm\n[\s\S]*expected scalar type (BFloat16|Half) but found Float",
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/8066": "introduced in 0.19.2"},
    fixed_in=None,
    present=(Source(_CONFIGURE, "param_dtype, buffer_dtype = self._mixed_precision_dtypes()"),),
)

_STEPS, _LEARNING_RATE = 3, 0.05
_MESSAGE = "but found Float"


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    from dsfix.lab import half

    steps = [[lab.models.regression_batch(rank=0, step=step, size=8)] for step in range(_STEPS)]
    inputs = steps[0][0][0]
    seen: dict[str, Any] = {}
    right: dict[str, Any] = {}
    for section, dtype in ("bf16", torch.bfloat16), ("fp16", torch.float16):
        model = _model(lab, fp32_inside=False)
        config = {
            "train_micro_batch_size_per_gpu": len(inputs),
            "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
            section: {"enabled": True, **({"initial_scale_power": 8} if section == "fp16" else {})},
            "zero_optimization": {"stage": 1},
        }
        engine = lab.initialize(model, config, model_parameters=model.parameters())
        try:
            for [(batch, targets)] in steps:
                engine.backward(half.loss(engine, batch, targets, next(model.parameters())))
                engine.step()
        except RuntimeError as error:
            if _MESSAGE not in str(error):
                raise
            raise BugPresent(f"{section}: {error}") from error
        seen.update(_results(section, lab.parameters(engine), model, inputs))
        # through 0.19.1 the statistics are half
        plain = _model(lab, fp32_inside=model.blocks[0][1].running_mean.dtype == torch.float32)
        trained = half.train(plain, dtype, steps, functools.partial(torch.optim.SGD, lr=_LEARNING_RATE))
        right.update(_results(section, trained, plain, inputs))
    return lab.reference.compare(
        seen, right, within=0.001, after=f"after {_STEPS} steps", what="parameters and outputs"
    )


def _results(section: str, trained: dict[str, Any], model: Any, inputs: Any) -> dict[str, Any]:
    """The parameters, and the model's output in evaluation mode, which depends on the statistics."""
    model.eval()
    found = {**trained, "output": model(inputs.to(next(model.parameters()))).detach().float().cpu()}
    return {f"{section} {name}": each for name, each in found.items()}


def _model(lab: Lab, fp32_inside: bool) -> Any:
    """fp32_inside: with a BatchNorm whose statistics no cast reaches and whose parameters are cast to fp32 in use."""
    torch = lab.torch

    class InFp32(torch.nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = torch.nn.Parameter(torch.ones(16)), torch.nn.Parameter(torch.zeros(16))
            self.mean, self.variance = torch.zeros(16), torch.ones(16)

        def forward(self, x: Any) -> Any:
            self.mean, self.variance = self.mean.to(x.device), self.variance.to(x.device)
            statistics = self.mean, self.variance
            weights = self.weight.float(), self.bias.float()
            return torch.nn.functional.batch_norm(x, *statistics, *weights, training=self.training)

    model = lab.models.MLP()
    for block in model.blocks:
        block[1] = InFp32() if fp32_inside else torch.nn.BatchNorm1d(16)
    return model
