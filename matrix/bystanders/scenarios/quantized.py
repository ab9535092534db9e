"""ZeRO++ with quantized weights, gathered as 8-bit integers; plain PyTorch takes the place of the CUDA kernels."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any
from unittest import mock

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job


class _Quantizer:
    """In the place of CUDAQuantizer, with one scale per tensor."""

    def quantize(self, tensor: Any, groups: Any = None) -> Any:
        scale = tensor.abs().max().float().clamp(min=1e-12).reshape(1) / 127
        return (tensor.float() / scale).round().char(), scale

    def dequantize(self, quantized: Any, scales: Any) -> Any:
        return (quantized.view(scales.numel(), -1).half() * scales.view(-1, 1).half()).view(quantized.shape)


@scenario(
    "ZeRO++ hpZ with quantized weights",
    pinned=[{"stage": "3", "precision": "fp16", "ranks": "4", "partitioning": "all"}],
    reference=False,
    stage="3",
    offload=("none",),
    precision=("fp16",),
    ranks=("2", "4"),
    clipping=("off",),
)
def hpz_quantized(job: Job) -> None:
    nn = job.torch.nn
    job.torch.manual_seed(0)
    forward = lambda self, x: self.head(self.below(x).tanh()).mean(dim=1, keepdim=True)  # noqa: E731
    model = job.model(forward, below=nn.Linear(16, 16), head=nn.Linear(16, 8))
    module = importlib.import_module("deepspeed.runtime.zero.partition_parameters")
    with mock.patch.object(module, "CUDAQuantizer", _Quantizer):
        engine = job.engine(model, zero_optimization={"zero_hpz_partition_size": 2, "zero_quantized_weights": True})
        for step in range(3):
            job.train(engine, step)
