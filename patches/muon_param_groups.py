"""Muon: the learning rate and weight decay of parameter groups are ignored.

Why: DeepSpeed sorts the parameters into two groups of its own, for Muon and for Adam, with the config's settings. From
    0.19.2 to 0.19.6 it takes groups apart for that and forgets what they say, in silence: biases and norms that are
    in a group without weight decay, as transformers makes it, are decayed, and all have one learning rate. (Up to
    0.19.1 Muon and groups do not go together: AttributeError, 'dict' object has no attribute 'use_muon'.)
How: where a group says something else than the config (by value: a tuple is as good as a list, and Muon's defaults as
    what is not said), each group is sorted on its own, as upstream does, and keeps its lr, weight_decay, momentum,
    ns_method, betas and eps; what a group says outdoes `muon_lr` and `adam_lr`. Else nothing changes.
Changes: jobs with such groups: the update of their parameters, and the number of the optimizer's groups. So the
    optimizer state of a checkpoint that was written without the patch does not fit: loading it ends in a ValueError
    that says so. Load the weights alone, or go on as before under `DSFIX_SKIP=muon_param_groups`. Where the number is
    the same it fits, and the groups' settings are, as always, the checkpoint's: those of the config. All other jobs
    load it as before.
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
        Edit(
            _CONFIGURE,
            before="return optimizer",
            code="from dsfix.patches.muon_param_groups import refuse_others_checkpoints\n"
            "refuse_others_checkpoints(optimizer)",
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
_NAMES = ("muon-params", "adam-params")  # of DeepSpeed's groups


def split(halves: list[dict[str, Any]], incoming: list[Any]) -> list[dict[str, Any]]:
    """DeepSpeed's groups for Muon and for Adam, or both halves of each incoming group where one says anything else."""
    groups = [item for item in incoming if isinstance(item, dict)]
    if len(groups) < len(incoming):
        groups.append({"params": [item for item in incoming if not isinstance(item, dict)]})
    result = []
    differs = False
    for index, group in enumerate(groups):
        for half in halves:
            own = {id(parameter) for parameter in half["params"]}
            parameters = [parameter for parameter in group["params"] if id(parameter) in own]
            if not parameters:
                continue
            defaults = _defaults(half["use_muon"])
            says = {key: group[key] for key in _KEYS[half["use_muon"]] if group.get(key) is not None}
            differs = differs or any(not _same(value, half.get(key, defaults[key])) for key, value in says.items())
            prefix = group.get("name") or f"group{index}"
            name = f"{prefix}-{half['name']}" if len(groups) > 1 else half["name"]
            result.append({**half, **says, "params": parameters, "name": name})
    return result if differs else halves


def _same(value: Any, other: Any) -> bool:
    if isinstance(value, (list, tuple)) and isinstance(other, (list, tuple)):
        return list(value) == list(other)
    return bool(value == other)


def _defaults(use_muon: bool) -> dict[str, Any]:
    """What Muon takes for a setting that is not given."""
    import torch
    from deepspeed.runtime.zero.muon.original_muon import (  # type: ignore[import-not-found,unused-ignore]
        SingleDeviceMuonWithAuxAdam,
    )

    group = {"params": [torch.nn.Parameter(torch.empty(1, device="cpu"))], "use_muon": use_muon}
    defaults: dict[str, Any] = SingleDeviceMuonWithAuxAdam([group]).param_groups[0]
    return defaults


def refuse_others_checkpoints(optimizer: Any) -> None:
    """Have a sentence said where the state of DeepSpeed's two groups is loaded into more."""
    groups = getattr(optimizer, "param_groups", [])
    if not all("use_muon" in group for group in groups) or not hasattr(optimizer, "register_load_state_dict_pre_hook"):
        return

    def refuse(optimizer: Any, state: Any) -> None:
        saved, groups = state["param_groups"], optimizer.param_groups
        if len(saved) != len(groups) and all(group.get("name") in _NAMES for group in saved):
            raise ValueError(
                f"the checkpoint's optimizer has {len(saved)} parameter groups and this job's {len(groups)}: it was "
                "written without dsfix's muon_param_groups, which keeps groups with an lr or weight_decay of their own "
                "apart. Load it with load_optimizer_states=False, or go on as before, without these settings, under "
                "DSFIX_SKIP=muon_param_groups"
            )

    optimizer.register_load_state_dict_pre_hook(refuse)


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
