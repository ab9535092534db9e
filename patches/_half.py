"""fp16 and bf16 training in plain PyTorch, for reproductions. Imports torch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

# reproductions say half.provide_…
from dsfix.lab.kernels import provide_cpu_adam as provide_cpu_adam
from dsfix.lab.kernels import provide_fused_adam as provide_fused_adam
from dsfix.lab.models import MLP

if TYPE_CHECKING:
    from dsfix.lab.session import Lab


def loss(model: Callable[..., torch.Tensor], inputs: torch.Tensor, targets: torch.Tensor, like: torch.Tensor) -> Any:
    """Mean squared error in fp32 of a model that computes in the dtype and on the device of `like`."""
    return functional.mse_loss(model(inputs.to(like)).float(), targets.to(like.device))


def train(
    model: nn.Module,
    dtype: torch.dtype,
    steps: Iterable[Sequence[Sequence[torch.Tensor]]],
    optimizer: Callable[[list[torch.Tensor]], torch.optim.Optimizer],
    first_step_without_gradients: bool = False,
    accumulation: torch.dtype = torch.float32,
    zero_grad: bool = True,
    masters: list[torch.Tensor] | None = None,
) -> dict[str, torch.Tensor]:
    """Trains `model` in place in `dtype` with fp32 master weights; returns its parameters as fp32 on the CPU.

    Runs on the GPU, real or emulated, if there is one, so that rounding is that of the engine.
    steps: for each step the micro-batches of all ranks, whose gradients are accumulated in the dtype `accumulation`.
    first_step_without_gradients: as DeepSpeed's wrappers do to allocate the optimizer state; it counts in Adam's bias
    correction. zero_grad: whether gradients are zeroed after a step. masters: receives the fp32 weights.
    """
    model.to("cuda" if torch.cuda.is_available() else "cpu", dtype)
    trained = [p for p in model.parameters() if p.requires_grad]
    weights = [p.detach().float().clone() for p in trained]
    stepper = optimizer(weights)
    sums = [torch.zeros_like(p, dtype=accumulation) for p in trained]
    if first_step_without_gradients:
        for weight in weights:
            weight.grad = torch.zeros_like(weight)
        stepper.step()
    for micro_batches in steps:
        for inputs, targets in micro_batches:
            model.zero_grad()
            (loss(model, inputs, targets, trained[0]) / len(micro_batches)).backward()
            for parameter, total in zip(trained, sums):
                if parameter.grad is not None:
                    total += parameter.grad.to(accumulation)
        for weight, total in zip(weights, sums):
            weight.grad = total.float()
        stepper.step()
        for parameter, weight, total in zip(trained, weights, sums):
            parameter.data.copy_(weight)
            if zero_grad:
                total.zero_()
    if masters is not None:
        masters[:] = [weight.cpu() for weight in weights]
    return {name: p.detach().to("cpu", torch.float32, copy=True) for name, p in model.named_parameters()}


def sgd_weights(
    micro_batches: Sequence[Sequence[torch.Tensor]], lr: float, accumulation: torch.dtype = torch.float32
) -> torch.Tensor:
    """The fp32 master weights of a bf16 MLP after one step of SGD, as one vector."""
    masters: list[torch.Tensor] = []
    optimizer = functools.partial(torch.optim.SGD, lr=lr)
    train(MLP(), torch.bfloat16, [micro_batches], optimizer, accumulation=accumulation, masters=masters)
    return torch.cat([master.flatten() for master in masters])


def zero1_sgd_weights(lab: Lab, micro_batches: Sequence[Sequence[torch.Tensor]], lr: float) -> torch.Tensor:
    """The fp32 master weights on this rank after one DeepSpeed step: bf16, ZeRO-1, gradient accumulation in fp32."""
    model = MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(micro_batches[0][0]),
        "gradient_accumulation_steps": len(micro_batches),
        "optimizer": {"type": "SGD", "params": {"lr": lr}},
        "bf16": {"enabled": True},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",  # the default, bf16, rounds
        "zero_optimization": {"stage": 1},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for inputs, targets in micro_batches:
        engine.backward(loss(engine, inputs, targets, next(model.parameters())))
        engine.step()
    return torch.cat([p.detach().flatten().cpu() for group in engine.optimizer.param_groups for p in group["params"]])


def zero1_difference(lab: Lab, own: torch.Tensor, whole: torch.Tensor) -> float:
    """The largest difference of this rank's weights from its part of `whole`, relative to the largest weight."""
    padded = functional.pad(whole, (0, max(0, own.numel() * lab.world_size - whole.numel())))
    part = padded if own.numel() == whole.numel() else padded.narrow(0, lab.rank * own.numel(), own.numel())
    return float((own - part[: own.numel()]).abs().max() / whole.abs().max())
