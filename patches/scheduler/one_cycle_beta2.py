"""OneCycle, which cycles momentum by default, replaces Adam's beta2 by 0.99.

Why: the schedule keeps the momenta as pairs of betas, the second of which is the constant 0.99, and writes both into
    the optimizer, first when it is made. beta2 from the config, or its default of 0.999, never takes effect. There is
    no error.
How: the pairs get each group's own beta2, as it is when the schedule is made. beta1 is cycled, as documented.
Changes: jobs with OneCycle, cycle_momentum and an optimizer whose beta2 is not 0.99: the second moments decay with the
    configured beta2. One that resumes from a checkpoint written without the patch does so from its second step on at
    the latest.
Workaround: Scripts set `cycle_momentum` to false, or write the betas after each step. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.job import Job
    from dsfix.lab import Lab

_INITIALIZE = "deepspeed.runtime.lr_schedules:OneCycle._initialize_momentum"
_WRITTEN = """
if last_batch_iteration == -1:
    for momentum, group in zip(self.min_moms, optimizer.param_groups):
        group['betas'] = momentum
"""


def with_own_beta2(schedule: Any, groups: Any) -> None:
    """Give the schedule's pairs each group's beta2, where it is a number."""
    for number, group in enumerate(groups):
        betas = group.get("betas")
        if isinstance(betas, (tuple, list)) and len(betas) == 2 and isinstance(betas[1], float) and betas[1] != 0.99:
            took_effect(__name__, "beta2 was not replaced with 0.99")
            for moments in (schedule.min_moms, schedule.max_moms):
                moments[number] = moments[number][0], betas[1]


def _meets(job: Job) -> bool:
    if job.get("scheduler", "type") != "OneCycle" or job.get("scheduler", "params", "cycle_momentum") is False:
        return False
    betas = job.get("optimizer", "params", "betas", default=(0.9, 0.999))
    return not (isinstance(betas, (list, tuple)) and len(betas) == 2 and betas[1] == 0.99)


PATCH = Patch(
    title="OneCycle replaces Adam's beta2 by 0.99",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0"},
    changes=(
        Edit(
            _INITIALIZE,
            before=_WRITTEN,
            code="with_own_beta2(self, optimizer.param_groups)",
            uses=(with_own_beta2,),
        ),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/8495": "proposed fix"},
    present=(Source(_INITIALIZE, _WRITTEN),),
    config=_meets,
)

_STEPS, _LOW, _HIGH, _HALF = 6, 0.001, 0.01, 4
_BETA2 = 0.9


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(_STEPS)]

    def plain(beta2: float) -> dict[str, Any]:
        model = lab.models.MLP()
        optimizer = torch.optim.Adam(model.parameters(), lr=_LOW, betas=(0.8, beta2))
        for step, batch in enumerate(batches):
            share = min(step, 2 * _HALF - step) / _HALF
            # the schedule begins with the lower momentum, before its first step
            momentum = 0.9 - 0.1 * share if step else 0.8
            optimizer.param_groups[0].update(lr=_LOW + (_HIGH - _LOW) * share, betas=(momentum, beta2))
            optimizer.zero_grad()
            model.loss(*batch).backward()
            optimizer.step()
        return {name: parameter.detach() for name, parameter in model.named_parameters()}

    model = lab.models.MLP()
    params = {"cycle_min_lr": _LOW, "cycle_max_lr": _HIGH, "cycle_first_step_size": _HALF}
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "Adam", "params": {"lr": _LOW, "betas": [0.8, _BETA2], "adam_w_mode": False}},
        "scheduler": {"type": "OneCycle", "params": params},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for inputs, targets in batches:
        engine.backward(torch.nn.functional.mse_loss(engine(inputs.to(lab.device)), targets.to(lab.device)))
        engine.step()
    return lab.reference.compare(
        lab.parameters(engine),
        plain(_BETA2),
        {"those of a beta2 of 0.99": plain(0.99)},
        within=1e-5,
        after=f"after {_STEPS} steps with a beta2 of {_BETA2}",
    )
