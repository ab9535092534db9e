"""WarmupCosineLR: the first step uses the optimizer's full learning rate.

Why: through 0.15.2 WarmupCosineLR sets the learning rate when it is stepped, which the engine does after the
    optimizer's step, and not when it is created: the first step of training uses the optimizer's own `lr`, the largest
    step of all, with fresh weights and moments, which a warm-up is meant to prevent. Since 0.15.3 it starts at 0, but
    only for the first parameter group; all others make their first step at their full rate. Nothing fails.
    WarmupLR: warmup_first_step.
How: a new schedule (`last_batch_iteration` -1) sets 0 for every group when it is created, as upstream does; loading its
    state replaces that. If these rates are still set when another schedule or engine is made with the optimizer, or
    this one is gone, the groups get their own back; a schedule of PyTorch that took them for the optimizer's own gets
    those when this one is first stepped.
Changes: the first step has the learning rate 0, since 0.15.3 in the groups after the first; all others keep theirs. A
    checkpoint written without the patch continues as it would have; where the optimizer's rates are not loaded
    (`elastic_checkpoint`, `load_optimizer_states=False`), its first step has the schedule's.
Workaround: Scripts set the learning rate of the first step themselves. You can keep it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from dsfix.patch import CannotTell, Edit, Patch, Severity, Source

from .._shared import (
    copied,
    correct_later_schedules,
    engine_begins,
    engine_has,
    first_rates,
    give_back,
    set_first_rates,
)

if TYPE_CHECKING:
    from dsfix.job import Job
    from dsfix.lab import Lab

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
_SCHEDULE = "deepspeed.runtime.lr_schedules:WarmupCosineLR"
_EFFECT = "the first step had the warm-up's first learning rate, not the optimizer's own"
# the engine steps the schedule after the optimizer; releases with `update_lr` set the first group's rate
_WHEN = (
    "self.last_batch_iteration == -1 and last_batch_iteration is None"
    f" and __import__({set_first_rates.__module__!r}, fromlist=[''])"
    ".first_step_had_first_rates(self, 'update_lr' in globals())"
)


def _meets(job: Job) -> bool:
    # since 0.15.3 only jobs with several parameter groups, which the config does not show
    return job.get("scheduler", "type") == "WarmupCosineLR" and job.release < Version("0.15.3")


PATCH = Patch(
    title="WarmupCosineLR: the first step uses the optimizer's full learning rate",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.3,<0.19.0"},
    changes=(
        Edit(
            f"{_SCHEDULE}.get_lr",
            replace="return [0.0]",
            code="return first_rates(self, [0.0] * len(self.org_lrs))",
            uses=(first_rates,),
        ),
        Edit(f"{_SCHEDULE}.get_lr_ratio", replace="return [0.0]", code="return 0.0"),
        Edit(
            f"{_SCHEDULE}.__init__",
            after="self.optimizer = get_torch_optimizer(optimizer)",
            code="give_back(self.optimizer)",
            uses=(give_back,),
        ),
        Edit(
            f"{_SCHEDULE}.__init__",
            after="self.org_lrs = [group['lr'] for group in self.optimizer.param_groups]",
            code="self.org_lrs = copied(self.org_lrs)\n"
            "if last_batch_iteration == -1:\n"
            "    self._last_lr = set_first_rates(self, [0.0] * len(self.org_lrs))",
            uses=(copied, set_first_rates),
        ),
        Edit(
            f"{_SCHEDULE}.load_state_dict",
            after="self.last_batch_iteration = sd['last_batch_iteration']",
            code="if not any(group['lr'] for group in self.optimizer.param_groups):\n"
            "    self._last_lr = set_first_rates(self, self.get_lr())",
            uses=(set_first_rates,),
        ),
        Edit(
            f"{_SCHEDULE}.step",
            before="if last_batch_iteration is None:\n    ...",
            code="if self.last_batch_iteration == -1:\n    correct_later_schedules(self)",
            uses=(correct_later_schedules,),
            effect=_EFFECT,
            when=_WHEN,
        ),
        Edit(
            f"{_ENGINE}._configure_optimizer",
            before="self._check_for_duplicates(basic_optimizer)",
            code="engine_begins(self, basic_optimizer)",
            uses=(engine_begins,),
        ),
        Edit(
            f"{_ENGINE}._configure_lr_scheduler",
            before="log_dist(f'DeepSpeed LR Scheduler = {self.lr_scheduler}', ranks=[0])",
            code="engine_has(self.lr_scheduler)",
            uses=(engine_has,),
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/6597": "fixed for the first group in 0.15.3",
        "https://github.com/deepspeedai/DeepSpeed/pull/7969": "fixed in 0.19.0",
    },
    fixed_in="0.19.0",
    fixed=(Source(f"{_SCHEDULE}.get_lr", "[0.0 for _ in self.org_lrs]"),),
    config=_meets,
)

_RATES = (0.1, 0.02)
_WARMUP = {"total_num_steps": 8, "warmup_min_ratio": 0.2, "warmup_num_steps": 2, "warmup_type": "linear"}
# the schedule is stepped after the optimizer and warms up from 0.2 to 1 in two steps
_SHARES = (0.0, 0.2, 0.6)


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    schedules = lab.deepspeed.runtime.lr_schedules
    if not hasattr(schedules, "WarmupCosineLR"):
        raise CannotTell(f"deepspeed {lab.deepspeed.__version__} has no WarmupCosineLR")
    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(len(_SHARES))]

    def groups(model: Any) -> list[dict[str, Any]]:
        return [
            {"params": list(part.parameters()), "lr": rate} for part, rate in zip((model.blocks, model.head), _RATES)
        ]

    def plain(first: Sequence[float]) -> dict[str, Any]:
        """first: each group's share of its rate in the first step."""
        model: Any = lab.models.MLP()
        optimizer = torch.optim.SGD(groups(model))
        for number, (inputs, targets) in enumerate(batches):
            for group, rate, share in zip(optimizer.param_groups, _RATES, first):
                group["lr"] = rate * (_SHARES[number] if number else share)
            optimizer.zero_grad()
            model.loss(inputs, targets).backward()
            optimizer.step()
        return {name: p.detach() for name, p in model.named_parameters()}

    model = lab.models.MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "scheduler": {"type": "WarmupCosineLR", "params": _WARMUP},
    }
    engine = lab.initialize(model, config, optimizer=torch.optim.SGD(groups(model)))
    for inputs, targets in batches:
        outputs = engine(inputs.to(lab.device))
        engine.backward(torch.nn.functional.mse_loss(outputs, targets.to(lab.device)))
        engine.step()

    return lab.reference.compare(
        lab.parameters(engine),
        plain((0.0, 0.0)),
        {
            "those of a first step of both groups at the full rate": plain((1.0, 1.0)),
            "those of a first step of the second group at the full rate": plain((0.0, 1.0)),
        },
        within=1e-5,
        after=f"after {len(_SHARES)} steps of warm-up",
    )
