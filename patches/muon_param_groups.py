"""Muon: the learning rate and weight decay of parameter groups are ignored.

Why: DeepSpeed sorts the parameters into two groups of its own, for Muon and for Adam, with the config's settings. From
    0.19.2 to 0.19.6 it takes groups apart for that and forgets what they say, in silence: biases and norms that are
    in a group without weight decay, as transformers makes it, are decayed, and all have one learning rate. (Up to
    0.19.1 Muon and groups do not go together: AttributeError, 'dict' object has no attribute 'use_muon'.)
How: after the sorting, parameters whose group says something else than the config get a group of their own, with the
    group's lr, weight_decay, momentum, ns_method, betas and eps; what a group says outdoes `muon_lr` and `adam_lr`.
    Where no group says anything else, nothing changes.
Changes: jobs with such groups: the update of their parameters, and the number of the optimizer's groups. So the
    optimizer state of a checkpoint that was written without the patch does not fit: load its weights alone, or go on
    under `DSFIX_SKIP=muon_param_groups`.
Upstream: brought by https://github.com/deepspeedai/DeepSpeed/pull/7938 (0.19.2), fixed by
    https://github.com/deepspeedai/DeepSpeed/pull/8440 (0.19.7).
Retire: when DeepSpeed 0.19.6 is no longer supported here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_CONFIGURE = "deepspeed.runtime.engine:DeepSpeedEngine._configure_basic_optimizer"

PATCH = Patch(
    title="Muon: parameter groups' own lr and weight_decay are ignored",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.19.2,<0.19.7"},
    changes=(
        Edit(
            _CONFIGURE,
            after="if non_muon_params:\n    ...",
            code="from dsfix.patches.muon_param_groups import split\n"
            "param_groups = split(param_groups, model_parameters)",
        ),
    ),
    symptom="",
    upstream=(
        "https://github.com/deepspeedai/DeepSpeed/pull/7938",
        "https://github.com/deepspeedai/DeepSpeed/pull/8440",
    ),
    fixed_in="0.19.7",
    present=(Source(_CONFIGURE, "all_params.extend(item['params'])"),),
    fixed=(Source(_CONFIGURE, "self._muon_param_groups(model_parameters, optimizer_parameters)"),),
)

_KEYS = {True: ("lr", "momentum", "weight_decay", "ns_method"), False: ("lr", "betas", "eps", "weight_decay")}


def split(halves: list[dict[str, Any]], incoming: list[Any]) -> list[dict[str, Any]]:
    """DeepSpeed's groups for Muon and for Adam without the parameters whose group differs, and those groups."""
    result = []
    for half in halves:
        own: list[dict[str, Any]] = []
        for index, group in enumerate(incoming):
            if not isinstance(group, dict):
                continue
            says = {key: group[key] for key in _KEYS[half["use_muon"]] if key in group}
            if all(key in half and half[key] == value for key, value in says.items()):
                continue
            members = {id(parameter) for parameter in group["params"]}
            parameters = [parameter for parameter in half["params"] if id(parameter) in members]
            if parameters:
                name = f"{group.get('name', f'group{index}')}-{half['name']}"
                own.append({**half, **says, "params": parameters, "name": name})
        taken = {id(parameter) for group in own for parameter in group["params"]}
        rest = [parameter for parameter in half["params"] if id(parameter) not in taken]
        result += [{**half, "params": rest}] if rest else []
        result += own
    return result


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    from dsfix.lab.models import MLP, regression_batch
    from dsfix.lab.reference import largest_difference

    if hasattr(torch, "compiler") and hasattr(torch.compiler, "set_stance"):
        torch.compiler.set_stance("force_eager")  # the update is compiled on its first use
    model = MLP()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    rate, decay = 0.1, 0.01
    groups: dict[bool, dict[str, Any]] = {
        True: {"weight_decay": 0.5, "params": [p for p in model.parameters() if p.ndim > 1]},
        False: {"weight_decay": 0.25, "lr": 0.2, "params": [p for p in model.parameters() if p.ndim < 2]},
    }
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "Muon", "params": {"lr": rate, "weight_decay": decay, "torch_adam": True}},
        "zero_optimization": {"stage": 1},
    }
    try:
        engine = lab.initialize(model, config, model_parameters=list(groups.values()))
    except (AttributeError, ImportError) as error:
        version = lab.deepspeed.__version__
        if "use_muon" in str(error):
            raise CannotTell(f"{version} refuses groups with Muon: {error}") from error
        if "Muon" in str(error):
            raise CannotTell(f"{version} has no Muon: {error}") from error
        raise
    loss = 0.0 * engine(regression_batch(rank=0, step=0)[0].to(lab.device)).sum()  # all that is left is weight decay
    engine.backward(loss)
    engine.step()

    right, wrong = {}, {}
    for name, value in before.items():
        group = groups[value.ndim > 1]
        right[name] = value * (1 - group.get("lr", rate) * group["weight_decay"])
        wrong[name] = value * (1 - rate * decay)
    parameters = lab.parameters(engine)
    difference = largest_difference(parameters, right)
    if largest_difference(parameters, wrong).relative < 1e-5 < difference.relative:
        raise BugPresent(f"all parameters decay by {rate * decay:g} per step and none as its group says: {difference}")
    assert difference.relative < 1e-5, f"after 1 step {difference}"
    return f"all parameters decay as their groups say, by 0.05 per step, within {difference.relative:.1e}"
