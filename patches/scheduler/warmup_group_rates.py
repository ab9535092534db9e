"""WarmupLR without `warmup_max_lr`: all parameter groups train at the first group's learning rate.

Why: since 0.17.2 WarmupLR without `warmup_max_lr` warms up to the optimizer's own learning rate instead of 0.001, but
    takes the first parameter group's for all groups. Groups often exist to have different rates (a head, embeddings,
    LoRA+): those rates are lost from the schedule's first step on. Nothing fails.
How: each group warms up to its own learning rate.
Changes: jobs with WarmupLR without `warmup_max_lr` and several groups of different learning rates: the second and later
    groups train at their own, also when a job resumes from a checkpoint written without the patch.
Workaround: The config's `warmup_max_lr` lists the rates of all groups. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import CannotTell, Edit, Patch, Severity

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
            effect="each group warmed up to its own learning rate (unpatched: the first group's)",
            when="len({g['lr'] for g in self.optimizer.param_groups if isinstance(g['lr'], (int, float))}) > 1",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7360": "introduced in 0.17.2",
        "https://github.com/deepspeedai/DeepSpeed/pull/8171": "fixed in 0.19.4",
    },
    fixed_in="0.19.4",
)

_RATES = (0.1, 0.01)
_STEPS = 4
_WARMUP_STEPS = 2


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(_STEPS)]
    # linear from 0 in two steps; the schedule is stepped after the optimizer
    share = (0.0, 0.0, 0.5, 1.0)

    def groups(model: Any) -> list[dict[str, Any]]:
        return [
            {"params": list(part.parameters()), "lr": rate} for part, rate in zip((model.blocks, model.head), _RATES)
        ]

    def plain(rates: tuple[float, ...]) -> dict[str, Any]:
        model: Any = lab.models.MLP()
        optimizer = torch.optim.SGD(groups(model))
        for (inputs, targets), part in zip(batches, share):
            for group, rate in zip(optimizer.param_groups, rates):
                group["lr"] = rate * part
            optimizer.zero_grad()
            model.loss(inputs, targets).backward()
            optimizer.step()
        return {name: p.detach() for name, p in model.named_parameters()}

    model = lab.models.MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": _WARMUP_STEPS, "warmup_type": "linear"}},
    }
    engine = lab.initialize(model, config, optimizer=torch.optim.SGD(groups(model)))
    for inputs, targets in batches:
        outputs = engine(inputs.to(lab.device))
        engine.backward(torch.nn.functional.mse_loss(outputs, targets.to(lab.device)))
        engine.step()

    rates = engine.get_lr()
    if all(rate == 0.001 for rate in rates):
        raise CannotTell("before 0.17.2 warmup_max_lr defaults to 0.001 for all groups")
    return lab.reference.compare(
        lab.parameters(engine),
        plain(_RATES),
        {f"those of groups trained at {tuple(rates)} instead of {_RATES}": plain((_RATES[0],) * 2)},
        within=1e-5,
        after=f"after {_STEPS} steps",
    )
