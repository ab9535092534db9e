"""ZeRO-3 with its optimizer on the CPU in bf16: what is copied to the fp32 gradients, and the result. Imports torch."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dsfix.lab import half
from dsfix.lab.models import MLP, regression_batch
from dsfix.lab.reference import compare

if TYPE_CHECKING:
    from dsfix.lab.session import Lab

_STEPS, _ACCUMULATION, _LEARNING_RATE = 2, 2, 0.1


@dataclass(frozen=True)
class Copy:
    """One copy to fp32 on the CPU. casts: from another dtype; crosses: from the accelerator."""

    numel: int
    dtype: str
    source: str

    @property
    def casts(self) -> bool:
        return self.dtype != "torch.float32"

    @property
    def crosses(self) -> bool:
        return self.source != "cpu"

    def __str__(self) -> str:
        return f"{self.numel} numbers of {self.dtype} from {self.source}"


class _Copies(TorchDispatchMode):  # type: ignore[misc,no-untyped-call,unused-ignore]
    def __init__(self, seen: list[Copy]) -> None:
        super().__init__()  # type: ignore[no-untyped-call,unused-ignore]
        self._seen = seen

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.copy_.default:
            target, source = args[:2]
            if target.device.type == "cpu" and target.dtype == torch.float32:
                self._seen.append(Copy(source.numel(), str(source.dtype), source.device.type))
        return function(*args, **(kwargs or {}))


def train(lab: Lab) -> tuple[list[Copy], str]:
    """The copies to fp32 on the CPU that `partition_grads` makes in two steps, and that the parameters are right."""
    steps = [
        [regression_batch(rank=0, step=_ACCUMULATION * step + micro) for micro in range(_ACCUMULATION)]
        for step in range(_STEPS)
    ]
    right = half.train(
        MLP(),
        torch.bfloat16,
        steps,
        functools.partial(torch.optim.SGD, lr=_LEARNING_RATE),
        accumulation=torch.bfloat16,
    )
    model = MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(steps[0][0][0]),
        "gradient_accumulation_steps": _ACCUMULATION,
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    copies: list[Copy] = []
    partition = engine.optimizer.partition_grads

    def partition_grads(*args: Any) -> Any:
        with _Copies(copies):
            return partition(*args)

    engine.optimizer.partition_grads = partition_grads
    like = torch.empty(0, dtype=torch.bfloat16, device=lab.device)
    for micro_batches in steps:
        for inputs, targets in micro_batches:
            engine.backward(half.loss(engine, inputs, targets, like))
            engine.step()
    if not copies:
        raise AssertionError("no gradient was copied to the CPU")
    return copies, compare(
        lab.parameters(engine), right, within=1e-6, after=f"after {_STEPS} steps with {len(copies)} copies"
    )
