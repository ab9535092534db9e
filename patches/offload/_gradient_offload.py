"""ZeRO-3 with its optimizer on the CPU in bf16: what is copied to the fp32 gradients, and the result."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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


def _copies(lab: Lab) -> tuple[list[Copy], Any]:
    """The list of copies that are made inside a context, and the context."""
    torch = lab.torch
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[Copy] = []

    class Copies(TorchDispatchMode):  # type: ignore[misc,no-untyped-call,unused-ignore]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is torch.ops.aten.copy_.default:
                target, source = args[:2]
                if target.device.type == "cpu" and target.dtype == torch.float32:
                    seen.append(Copy(source.numel(), str(source.dtype), source.device.type))
            return function(*args, **(kwargs or {}))

    return seen, Copies


def train(lab: Lab) -> tuple[list[Copy], str]:
    """The copies to fp32 on the CPU that `partition_grads` makes in two steps, and that the parameters are right."""
    torch, models = lab.torch, lab.models
    from .. import _half as half

    steps = [
        [models.regression_batch(rank=0, step=_ACCUMULATION * step + micro) for micro in range(_ACCUMULATION)]
        for step in range(_STEPS)
    ]
    right = half.train(
        models.MLP(),
        torch.bfloat16,
        steps,
        functools.partial(torch.optim.SGD, lr=_LEARNING_RATE),
        accumulation=torch.bfloat16,
    )
    model = models.MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(steps[0][0][0]),
        "gradient_accumulation_steps": _ACCUMULATION,
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    copies, noted = _copies(lab)
    partition = engine.optimizer.partition_grads

    def partition_grads(*args: Any) -> Any:
        with noted():
            return partition(*args)

    engine.optimizer.partition_grads = partition_grads
    like = torch.empty(0, dtype=torch.bfloat16, device=lab.device)
    for micro_batches in steps:
        for inputs, targets in micro_batches:
            engine.backward(half.loss(engine, inputs, targets, like))
            engine.step()
    if not copies:
        raise AssertionError("no gradient was copied to the CPU")
    return copies, lab.reference.compare(
        lab.parameters(engine), right, within=1e-6, after=f"after {_STEPS} steps with {len(copies)} copies"
    )
