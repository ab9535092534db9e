"""ZeRO-1/2 with several parameter groups: `safe_get_full_optimizer_state` fails except for the first group.

Why: the states that `safe_get_full_optimizer_state` and `safe_set_full_optimizer_state` use are linked to parameters
    once, in the first step. Since 0.13.2 that happens after the step of the first group, when the others have no states
    yet: "exp_avg not found in optimizer state fragment" for their parameters, for good. Only ranks with a part of the
    parameter raise it; in `safe_get_full_optimizer_state` the others wait.
How: they are linked after the step of the last group, still once.
Workaround: After the first step, scripts reset the optimizer's `_hp_optimizer_states_linked` and call its
    `_lazy_init_hp_params_optimizer_state`. You can keep it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_STEP = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer._optimizer_step"
_LINK = "self._lazy_init_hp_params_optimizer_state()"

PATCH = Patch(
    title="ZeRO-1/2 with several parameter groups: safe_get_full_optimizer_state fails except for the first group",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.13.2"},
    changes=(
        Edit(
            _STEP,
            replace=_LINK,
            code=f"if group_no == len(self.bit16_groups) - 1:\n    {_LINK}",
            effect=RAN,  # the script may not use what is linked
            when="len(self.bit16_groups) > 1",
        ),
    ),
    symptom=r"in get_optim_state_fragment\n(.*\n){1,3}ValueError: \w+ not found in optimizer state fragment",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/5104": "introduced in 0.13.2",
    },
    present=(Source(_STEP, _LINK),),
)

_STEPS, _RATE = 2, 0.01
_STATES = ("exp_avg", "exp_avg_sq")


def reproduce(lab: Lab) -> str:
    return "; ".join(_train(lab, stage) for stage in (1, 2))


def _train(lab: Lab, stage: int) -> str:
    torch, models, reference = lab.torch, lab.models, lab.reference
    utils = lab.deepspeed.utils
    batches = [models.regression_batch(rank=0, step=step) for step in range(_STEPS + 1)]

    model = models.MLP()
    plain = dict(model.named_parameters())
    optimizer = torch.optim.AdamW(_groups(model.parameters()), lr=_RATE)
    for number, batch in enumerate(batches):
        optimizer.zero_grad()
        model.loss(*batch).backward()
        if number == _STEPS:
            states = {f"{name} {key}": optimizer.state[p][key].clone() for name, p in plain.items() for key in _STATES}
            for parameter in plain.values():
                optimizer.state[parameter]["exp_avg"].mul_(-1)
        optimizer.step()

    model = models.MLP()
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "AdamW", "params": {"lr": _RATE}},
        "zero_optimization": {"stage": stage},
    }
    engine = lab.initialize(model, config, model_parameters=_groups(model.parameters()))
    seen: dict[str, Any] = {}
    for number, (inputs, targets) in enumerate(batches):
        engine.backward(torch.nn.functional.mse_loss(engine(inputs.to(lab.device)), targets.to(lab.device)))
        if number == _STEPS:
            for name, parameter in engine.module.named_parameters():
                for key in _STATES:
                    try:
                        state = utils.safe_get_full_optimizer_state(parameter, key)
                    except ValueError as error:
                        if "not found in optimizer state fragment" not in str(error):
                            raise
                        raise BugPresent(f"with ZeRO-{stage}: ValueError for {name}, {error}") from error
                    seen[f"{name} {key}"] = state.detach().cpu()
                    if key == "exp_avg":
                        utils.safe_set_full_optimizer_state(parameter, -state, key)
        engine.step()
    after = f"with ZeRO-{stage}, after {_STEPS} steps"
    read = reference.compare(seen, states, after=after, what="the states")
    right = {name: parameter.detach() for name, parameter in plain.items()}
    return f"{read}; set, {reference.compare(lab.parameters(engine), right, after='and one step more')}"


def _groups(parameters: Iterable[Any]) -> list[dict[str, Any]]:
    """Weights, and biases without decay."""
    given = list(parameters)
    return [
        {"params": [each for each in given if each.dim() > 1], "weight_decay": 0.1},
        {"params": [each for each in given if each.dim() < 2], "weight_decay": 0.0},
    ]
