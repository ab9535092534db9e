"""Plain PyTorch in place of DeepSpeed's compiled operators, which take minutes and a compiler. Imports torch."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from dsfix.lab.session import Lab


class _Kernel:
    """Replaces FusedAdamBuilder: the same step in plain PyTorch, because building the kernel takes minutes and nvcc."""

    def load(self) -> _Kernel:
        return self

    @staticmethod
    def multi_tensor_adam(
        chunk_size: int,
        overflow: torch.Tensor,
        tensors: Sequence[Sequence[torch.Tensor]],
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        step: int,
        decoupled: int,
        bias_correction: int,
        weight_decay: float,
    ) -> None:
        correction1, correction2 = (1 - beta**step if bias_correction else 1.0 for beta in (beta1, beta2))
        for gradient, parameter, average, square in zip(*tensors):
            gradient = gradient if decoupled else gradient + weight_decay * parameter
            average.lerp_(gradient, 1 - beta1)
            square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            update = (average / correction1) / ((square / correction2).sqrt() + eps)
            parameter.add_(update + weight_decay * parameter if decoupled else update, alpha=-lr)


class _CPUKernel:
    """Replaces CPUAdamBuilder: the same step in plain PyTorch, because building the kernel takes a minute and g++."""

    def __init__(self) -> None:
        self._decoupled: dict[int, bool] = {}

    def load(self) -> _CPUKernel:
        return self

    def create_adam(self, number: int, *options: Any) -> None:
        self._decoupled[number] = bool(options[5])  # after lr, betas, eps and weight decay

    def destroy_adam(self, number: int) -> None:
        del self._decoupled[number]

    def adam_update(
        self,
        number: int,
        step: int,
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        bias_correction: bool,
        parameter: torch.Tensor,
        gradient: torch.Tensor,
        average: torch.Tensor,
        square: torch.Tensor,
    ) -> None:
        tensors = [[gradient], [parameter], [average], [square]]
        options = (lr, beta1, beta2, eps, step, self._decoupled[number], bias_correction, weight_decay)
        _Kernel.multi_tensor_adam(0, gradient, tensors, *options)


def provide_fused_adam(lab: Lab) -> None:
    """Makes DeepSpeed's FusedAdam work without its kernel; "Adam" in a config selects it on a GPU by default."""
    assert lab.deepspeed
    importlib.import_module("deepspeed.ops.adam.fused_adam").FusedAdamBuilder = _Kernel  # type: ignore[attr-defined]


def provide_cpu_adam(lab: Lab) -> None:
    """Makes DeepSpeed's DeepSpeedCPUAdam work without its kernel; "Adam" in a config selects it with CPU offload."""
    assert lab.deepspeed
    importlib.import_module("deepspeed.ops.adam.cpu_adam").CPUAdamBuilder = _CPUKernel  # type: ignore[attr-defined]
