"""A learning rate that is a tensor: DeepSpeed's schedules replace it, and what holds the tensor keeps the old rate.

Why: a script makes its learning rate a tensor so that a captured CUDA graph reads it at each replay, and a compiled
    optimizer is not compiled again for each rate. PyTorch's schedules write into this tensor. DeepSpeed's put another
    one, of one dimension and float32, into the parameter group in each step (through 0.18.0 a number; OneCycle a number
    when it is created, so that the tensor is lost for good): a captured graph, and a script that kept the tensor, go
    on with the rate of the first step. Nothing shows it.
How: as upstream's fix, the new rate is written into the tensor. WarmupCosineLR keeps a copy of the rates that it starts
    from. Rates that are numbers are set as before. So is a tensor that groups with different rates have in common: each
    gets one of its own, once; and a tensor of integers.
Changes: jobs with such a tensor and a schedule of DeepSpeed's: what holds the tensor sees the schedule's rates; a rate
    has the tensor's own precision and shape. Rates returned by `get_last_lr` are then the groups' own tensors. A
    checkpoint written without the patch continues with the schedule's rates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_SCHEDULES = "deepspeed.runtime.lr_schedules"
_UPDATE = f"{_SCHEDULES}:update_lr"
_ONE_CYCLE = f"{_SCHEDULES}:OneCycle._initialize_lr"
_FIRST = "for lr, group in zip(self.min_lrs, optimizer.param_groups):\n    group['lr'] = lr"


def put_back(groups: Sequence[Any], held: Sequence[Any], rates: Sequence[Any]) -> None:
    """Writes the groups' new rates into the tensors that they held, and gives these back to the groups."""
    import torch

    pairs = [(rate, float(new)) for rate, new in zip(held, rates) if torch.is_tensor(rate)]
    for group, rate, new in zip(groups, held, rates):
        if not torch.is_tensor(rate) or not rate.is_floating_point():
            continue
        if len({value for each, value in pairs if each is rate}) > 1:
            group["lr"] = torch.full_like(rate, float(new))
        else:
            group["lr"] = rate
            rate.detach().fill_(new.squeeze() if torch.is_tensor(new) else new)


def copied(rates: Sequence[Any]) -> list[Any]:
    import torch

    return [rate.detach().clone() if torch.is_tensor(rate) else rate for rate in rates]


PATCH = Patch(
    title="a learning rate that is a tensor is replaced by DeepSpeed's schedules: captured graphs keep the old rate",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.15.3,<0.19.4"},
    changes=(
        Edit(
            _UPDATE,
            before="for param_group, lr in zip(param_groups, lrs):\n    ...",
            code="held = [group['lr'] for group in param_groups]",
        ),
        Edit(
            _UPDATE,
            before="return [group['lr'] for group in param_groups]",
            code="put_back(param_groups, held, lrs)",
            uses=(put_back,),
        ),
        Edit(
            _ONE_CYCLE,
            before=_FIRST,
            code="held = [group['lr'] for group in optimizer.param_groups]",
        ),
        Edit(
            _ONE_CYCLE,
            after=_FIRST,
            code="put_back(optimizer.param_groups, held, self.min_lrs)",
            uses=(put_back,),
        ),
        Edit(
            f"{_SCHEDULES}:WarmupCosineLR.__init__",
            before="if last_batch_iteration == -1:\n"
            "    self._last_lr = update_lr(self.optimizer.param_groups, self.get_lr())",
            code="self.org_lrs = copied(self.org_lrs)",
            uses=(copied,),
        ),
    ),
    symptom="",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/8202": "fixed in 0.19.4, but for OneCycle's first rate",
        "https://github.com/deepspeedai/DeepSpeed/pull/8205": "fixed in 0.19.4",
    },
    fixed_in="0.19.4",
    fixed=(Source(_ONE_CYCLE, "update_lr(optimizer.param_groups, self.min_lrs)"),),
)

_OWN = 0.1
_STEPS = 6
_LINEAR = {"warmup_num_steps": 2, "warmup_type": "linear"}
# as documented, for the engine's order: schedule.step() after optimizer.step()
_RATES: dict[str, tuple[dict[str, Any], tuple[float, ...]]] = {
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


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    if not hasattr(lab.deepspeed.runtime.lr_schedules, "update_lr"):
        raise CannotTell("before 0.15.3 each schedule sets the rates itself, and makes a tensor a number")
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

    def plain(rates: Iterable[float]) -> dict[str, Any]:
        model: Any = lab.models.MLP()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for (inputs, targets), rate in zip(batches, rates):
            optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad()
            model.loss(inputs, targets).backward()
            optimizer.step()
        return {name: p.detach() for name, p in model.named_parameters()}

    kept, largest = [], 0.0
    for name, (params, rates) in _RATES.items():
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
