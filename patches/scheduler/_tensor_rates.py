"""Jobs whose learning rates are tensors, under DeepSpeed's schedules, and the rates that these are to have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OWN = 0.1
_STEPS = 6
_LINEAR = {"warmup_num_steps": 2, "warmup_type": "linear"}
# as documented, for the engine's order: schedule.step() after optimizer.step()
RATES: dict[str, tuple[dict[str, Any], tuple[float, ...]]] = {
    "LRRangeTest": (
        {"lr_range_test_min_lr": 0.02, "lr_range_test_step_size": 2, "lr_range_test_step_rate": 1.0},
        (0.02, 0.03, 0.04, 0.05, 0.06, 0.07),
    ),
    "OneCycle": (
        {"cycle_min_lr": 0.02, "cycle_max_lr": 0.08, "cycle_first_step_size": 2, "cycle_momentum": False},
        (0.02, 0.05, 0.08, 0.05, 0.02, 0.02),
    ),
    "WarmupLR": ({"warmup_min_lr": 0.02, "warmup_max_lr": 0.08, **_LINEAR}, (0.02, 0.02, 0.05, 0.08, 0.08, 0.08)),
    "WarmupDecayLR": (
        {"total_num_steps": 6, "warmup_min_lr": 0.02, "warmup_max_lr": 0.08, **_LINEAR},
        (0.02, 0.02, 0.05, 0.08, 0.065, 0.05),
    ),
    "WarmupCosineLR": (
        {"total_num_steps": 5, "warmup_min_ratio": 0.2, "cos_min_ratio": 0.1, **_LINEAR},
        (0.0, 0.02, 0.06, 0.0775, 0.0325, 0.01),
    ),
}


def train(lab: Lab, names: Iterable[str]) -> str:
    """Train with each of these schedules and an optimizer that, as a captured CUDA graph, reads the tensors that were
    there when it was made.

    Raises:
        BugPresent: all steps were made at the rate that a tensor had at first.
    """
    torch = lab.torch
    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(_STEPS)]

    class Captured(torch.optim.SGD):  # type: ignore[misc,name-defined,unused-ignore]
        """As a captured CUDA graph, its steps read the tensors that were there when it was made."""

        def __init__(self, groups: Any) -> None:
            super().__init__(groups)
            self.rates = [group["lr"] for group in self.param_groups]

        @torch.no_grad()  # type: ignore[misc,untyped-decorator,unused-ignore]
        def step(self, closure: Any = None) -> None:
            for group, rate in zip(self.param_groups, self.rates):
                for parameter in group["params"]:
                    parameter.sub_(parameter.grad * rate)

    def plain(rates: Sequence[float]) -> dict[str, Any]:
        model = lab.models.MLP()
        parameters: dict[str, Any] = lab.reference.train(
            model, [[batch] for batch in batches], model.loss, "SGD", lr=0.0, rates=rates
        ).parameters
        return parameters

    kept, largest = [], 0.0
    for name in names:
        params, rates = RATES[name]
        model = lab.models.MLP()
        parts = model.blocks, model.head
        own = [torch.tensor(_OWN, dtype=torch.float64, device=lab.device) for _ in parts]
        optimizer = Captured([{"params": list(part.parameters()), "lr": rate} for part, rate in zip(parts, own)])
        config = {"train_micro_batch_size_per_gpu": len(batches[0][0]), "scheduler": {"type": name, "params": params}}
        engine = lab.initialize(model, config, optimizer=optimizer)
        for inputs, targets in batches:
            outputs = engine(inputs.to(lab.device))
            engine.backward(torch.nn.functional.mse_loss(outputs, targets.to(lab.device)))
            engine.step()
        parameters = lab.parameters(engine)
        difference = lab.reference.largest_difference(parameters, plain(rates))
        wrong = plain([float(own[0])] * _STEPS)
        same = [group["lr"] is rate for group, rate in zip(optimizer.param_groups, own)]
        if lab.reference.largest_difference(parameters, wrong).relative < 1e-5 < difference.relative and not any(same):
            kept.append(f"{name} at {float(own[0]):g}, {difference}")
            continue
        assert all(same), f"{name}: {optimizer.param_groups}"
        assert difference.relative < 1e-5, f"{name}: {difference}"
        assert engine.get_lr() == own
        largest = max(largest, difference.relative)
    if kept:
        raise BugPresent(f"all steps at one rate: {'; '.join(kept)}")
    return f"{_STEPS} steps at each schedule's rates: the parameters match plain PyTorch within {largest:.1e}"
