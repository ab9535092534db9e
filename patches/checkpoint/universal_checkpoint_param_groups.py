"""ZeRO-3: after loading a universal checkpoint, all parameter groups have the first group's weight decay.

Why: since 0.18.0 loading a universal checkpoint gives each of the optimizer's parameter groups what was saved for the
    first one: weight decay, learning rate, betas. With the usual two groups (biases and norms without weight decay),
    from then on either all parameters are decayed or none. A scheduler corrects the learning rates. Through 0.17.6
    several groups could not be converted or loaded at all: universal_checkpoint_subgroups,
    universal_checkpoint_load_subgroups.
How: each group gets what was saved for it. If the number of groups differs, the first one's values are used, as
    upstream does.
Changes: jobs with several parameter groups of different options that resume from a universal checkpoint under ZeRO-3
    keep these options. The universal checkpoint is correct and can be loaded again. What was saved since a wrong load
    contains the wrong options; weights were decayed that should not have been, or the reverse.
Workaround: Scripts set the options of `engine.optimizer.optimizer.param_groups` again after the load. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_LOAD = (
    "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3.load_hp_checkpoint_state_from_checkpoint_dir_stage3"
)
_SAVED = "optim_sd[OPTIMIZER_STATE_DICT]['param_groups']"
_OWN = f"""(
    {_SAVED}[list(map(id, self.optimizer.param_groups)).index(id(param_group))]
    if len({_SAVED}) == len(self.optimizer.param_groups)
    else {_SAVED}[0]
)"""

_DIFFERS = f"""len({_SAVED}) == len(self.optimizer.param_groups) and any(
    type(value) is type({_SAVED}[0].get(key)) in (bool, int, float) and value != {_SAVED}[0][key]
    for group, saved in zip(self.optimizer.param_groups, {_SAVED}) if group is param_group
    for key, value in saved.items()
)"""

PATCH = Patch(
    title="ZeRO-3: after loading a universal checkpoint, all parameter groups have the first group's weight decay",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.18.0"},
    changes=(
        Edit(
            _LOAD,
            replace=f"{_SAVED}[0]",
            code=_OWN,
            effect="a parameter group got its own saved options (unpatched: the first group's)",
            when=_DIFFERS,
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7585": "introduced in 0.18.0",
    },
    present=(
        # nothing but "params" is left to the group, and nothing corrects it after the loop
        Source(
            _LOAD,
            f"""
for param_group in self.optimizer.param_groups:
    for key, value in {_SAVED}[0].items():
        if key == "params":
            ...
        else:
            param_group[key] = value
if self.swap_optimizer:
    ...
""",
        ),
    ),
    config=lambda job: job.stage == 3 and job.get("checkpoint", "load_universal") is True,
)

_STEPS = 4
_DECAYS = (5.0, 0.0)
_LEARNING_RATE = 0.01


def reproduce(lab: Lab) -> str:
    from dsfix.lab.universal import convert_to_universal

    from ._checkpoints import require_universal_zero3, train

    require_universal_zero3()
    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(_STEPS)]
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "AdamW", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": 3},
    }
    model = lab.models.MLP()
    engine = lab.initialize(model, config, model_parameters=_groups(model))
    train(lab, engine, batches[: _STEPS // 2])
    engine.save_checkpoint(str(lab.tmp), tag="half")
    tag = convert_to_universal(lab, lab.tmp, "half")
    model = lab.models.MLP(seed=1)
    config["checkpoint"] = {"load_universal": True}
    engine = lab.initialize(model, config, model_parameters=_groups(model))
    engine.load_checkpoint(str(lab.tmp), tag=tag)
    decays = [group["weight_decay"] for group in engine.optimizer.optimizer.param_groups]
    train(lab, engine, batches[_STEPS // 2 :])

    parameters = lab.parameters(engine)
    difference = lab.reference.largest_difference(parameters, _plain(lab, batches, _DECAYS))
    wrong = lab.reference.largest_difference(parameters, _plain(lab, batches, _DECAYS[:1] * 2))
    if decays == [_DECAYS[0]] * 2 and wrong.relative < 1e-4 < difference.relative:
        raise BugPresent(
            f"weight decays {_DECAYS} are {tuple(decays)} after the load; {_STEPS // 2} steps later {difference}"
        )
    assert difference.relative < 1e-4, f"weight decays {decays}, {difference}"
    return (
        f"weight decays {tuple(decays)} after the load; {_STEPS // 2} steps later the parameters match plain PyTorch"
        f" within {difference.relative:.1e}"
    )


def _groups(model: Any) -> list[dict[str, Any]]:
    """One group of matrices and one of vectors."""
    parameters = list(model.parameters())
    kinds = [p for p in parameters if p.dim() > 1], [p for p in parameters if p.dim() == 1]
    return [{"params": kind, "weight_decay": decay} for kind, decay in zip(kinds, _DECAYS)]


def _plain(lab: Lab, batches: Any, decays: tuple[float, ...]) -> dict[str, Any]:
    """Plain PyTorch's parameters, with weight decays `decays` in the second half of the steps."""
    model = lab.models.MLP()
    optimizer = lab.torch.optim.AdamW(_groups(model), lr=_LEARNING_RATE)
    for step, batch in enumerate(batches):
        if step == _STEPS // 2:
            for group, decay in zip(optimizer.param_groups, decays):
                group["weight_decay"] = decay
        optimizer.zero_grad()
        loss: Any = model.loss(*batch)
        loss.backward()
        optimizer.step()
    return {name: parameter.detach() for name, parameter in model.named_parameters()}
