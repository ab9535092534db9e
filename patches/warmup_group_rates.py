"""WarmupLR without `warmup_max_lr`: all parameter groups train at the first group's learning rate.

Why: where `warmup_max_lr` is not given, WarmupLR warms up to the optimizer's own learning rate; it takes the first
    parameter group's for all groups. Several groups are there to have several rates (a head, embeddings, LoRA+): those
    rates are gone from the first step of the schedule on. Nothing shows it.
How: each group's own learning rate is the one to warm up to.
Changes: jobs with WarmupLR without `warmup_max_lr` and several groups of different learning rates: the second and later
    groups train at their own, also where a job resumes from a checkpoint written without the patch.
Upstream: brought by https://github.com/deepspeedai/DeepSpeed/pull/7360 (0.17.2), which made the optimizer's rate the
    default instead of 0.001; fixed by https://github.com/deepspeedai/DeepSpeed/pull/8171 (0.19.4).
Retire: when DeepSpeed 0.19.3 is no longer supported here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Severity

if TYPE_CHECKING:
    from dsfix.lab import Lab

PATCH = Patch(
    title="WarmupLR without warmup_max_lr: all parameter groups train at the first group's learning rate",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.17.2,<0.19.4"},
    changes=(
        Edit(
            "deepspeed.runtime.lr_schedules:WarmupLR.__init__",
            replace="[group['lr'] for group in self.optimizer.param_groups][0]",
            code="[group['lr'] for group in self.optimizer.param_groups]",
        ),
    ),
    symptom="",
    upstream=(
        "https://github.com/deepspeedai/DeepSpeed/pull/7360",
        "https://github.com/deepspeedai/DeepSpeed/pull/8171",
    ),
    fixed_in="0.19.4",
)

_RATES = (0.1, 0.01)
_STEPS = 4
_WARMUP_STEPS = 2


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    from dsfix.lab.models import MLP, regression_batch
    from dsfix.lab.reference import largest_difference

    batches = [regression_batch(rank=0, step=step) for step in range(_STEPS)]
    # linear from 0 in two steps, and the schedule is stepped after the optimizer
    share = (0.0, 0.0, 0.5, 1.0)

    def groups(model: Any) -> list[dict[str, Any]]:
        return [
            {"params": list(part.parameters()), "lr": rate} for part, rate in zip((model.blocks, model.head), _RATES)
        ]

    def plain(rates: tuple[float, ...]) -> dict[str, Any]:
        model: Any = MLP()
        optimizer = torch.optim.SGD(groups(model))
        for (inputs, targets), part in zip(batches, share):
            for group, rate in zip(optimizer.param_groups, rates):
                group["lr"] = rate * part
            optimizer.zero_grad()
            model.loss(inputs, targets).backward()
            optimizer.step()
        return {name: p.detach() for name, p in model.named_parameters()}

    model = MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": _WARMUP_STEPS, "warmup_type": "linear"}},
    }
    engine = lab.initialize(model, config, optimizer=torch.optim.SGD(groups(model)))
    for inputs, targets in batches:
        outputs = engine(inputs.to(lab.device))
        engine.backward(torch.nn.functional.mse_loss(outputs, targets.to(lab.device)))
        engine.step()

    parameters, rates = lab.parameters(engine), engine.get_lr()
    if all(rate == 0.001 for rate in rates):
        raise CannotTell("before 0.17.2 warmup_max_lr is 0.001 where it is not given, for all groups")
    difference = largest_difference(parameters, plain(_RATES))
    if largest_difference(parameters, plain((_RATES[0],) * 2)).relative < 1e-5 < difference.relative:
        raise BugPresent(f"groups made with the rates {_RATES} trained at {tuple(rates)}: {difference}")
    assert difference.relative < 1e-5, f"at rates {rates} {difference}"
    return f"groups made with the rates {_RATES} trained at them: parameters right within {difference.relative:.1e}"
