"""With Muon, the learning rate and weight decay of parameter groups are ignored.

Why: DeepSpeed sorts the parameters into two groups of its own, for Muon and for Adam, with the config's settings. From
    0.19.2 to 0.19.6 this dissolves the caller's groups and silently forgets their settings: biases and norms in
    a group without weight decay, as transformers makes it, are decayed, and all have one learning rate. (Through 0.19.1
    Muon and groups cannot be combined: AttributeError, 'dict' object has no attribute 'use_muon'.)
How: if a group's settings differ from the config's (by value: a tuple equals a list, and Muon's defaults stand for
    missing settings), each group is sorted separately, as upstream does, and keeps its lr, weight_decay, momentum,
    ns_method, betas and eps; a group's settings override `muon_lr` and `adam_lr`. Otherwise nothing changes.
Changes: jobs with such groups: their updates, and the number of the optimizer's groups. The optimizer state of a
    checkpoint written without the patch does not fit, and loading it raises a ValueError: load only the weights, or
    continue as before under `DSFIX_SKIP=muon_param_groups`. Other jobs load it as before.
Workaround: Scripts set the rates after `deepspeed.initialize`, in `engine.optimizer.param_groups`, by a group's
    `use_muon`. You can keep it; what goes by a group's index cannot, because there are more groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import CannotTell, Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_CONFIGURE = "deepspeed.runtime.engine:DeepSpeedEngine._configure_basic_optimizer"

_KEYS = {True: ("lr", "momentum", "weight_decay", "ns_method"), False: ("lr", "betas", "eps", "weight_decay")}
_NAMES = ("muon-params", "adam-params")  # names of DeepSpeed's groups


def split(halves: list[dict[str, Any]], incoming: list[Any]) -> list[dict[str, Any]]:
    """DeepSpeed's groups for Muon and for Adam, or both halves of each incoming group if one has other settings."""
    groups = [item for item in incoming if isinstance(item, dict)]
    if len(groups) < len(incoming):
        groups.append({"params": [item for item in incoming if not isinstance(item, dict)]})
    kinds = [({id(parameter) for parameter in half["params"]}, _defaults(half["use_muon"]), half) for half in halves]
    result = []
    differs = False
    for index, group in enumerate(groups):
        for own, defaults, half in kinds:
            parameters = [parameter for parameter in group["params"] if id(parameter) in own]
            if not parameters:
                continue
            says = {key: group[key] for key in _KEYS[half["use_muon"]] if group.get(key) is not None}
            differs = differs or any(not _same(value, half.get(key, defaults[key])) for key, value in says.items())
            prefix = group.get("name") or f"group{index}"
            name = f"{prefix}-{half['name']}" if len(groups) > 1 else half["name"]
            result.append({**half, **says, "params": parameters, "name": name})
    if differs:
        took_effect(__name__, "parameter groups kept settings of their own, such as lr and weight_decay")
    return result if differs else halves


def _same(value: Any, other: Any) -> bool:
    if isinstance(value, (list, tuple)) and isinstance(other, (list, tuple)):
        return list(value) == list(other)
    return bool(value == other)


def _defaults(use_muon: bool) -> dict[str, Any]:
    """Muon's defaults for settings that are not given."""
    import torch
    from deepspeed.runtime.zero.muon.original_muon import (
        SingleDeviceMuonWithAuxAdam,
    )

    group = {"params": [torch.nn.Parameter(torch.empty(1, device="cpu"))], "use_muon": use_muon}
    defaults: dict[str, Any] = SingleDeviceMuonWithAuxAdam([group]).param_groups[0]
    return defaults


def refuse_others_checkpoints(optimizer: Any) -> None:
    """Raise an explanatory ValueError when the state of DeepSpeed's two groups is loaded into more."""
    groups = getattr(optimizer, "param_groups", [])
    if not all("use_muon" in group for group in groups) or not hasattr(optimizer, "register_load_state_dict_pre_hook"):
        return

    def refuse(optimizer: Any, state: Any) -> None:
        saved, groups = state["param_groups"], optimizer.param_groups
        if len(saved) != len(groups) and all(group.get("name") in _NAMES for group in saved):
            raise ValueError(
                f"the checkpoint's optimizer has {len(saved)} parameter groups, this job's has {len(groups)}: the "
                "checkpoint was written without dsfix's muon_param_groups, which keeps groups with their own lr or "
                "weight_decay separate. Load it with load_optimizer_states=False, or set DSFIX_SKIP=muon_param_groups "
                "to continue without these settings"
            )

    optimizer.register_load_state_dict_pre_hook(refuse)


PATCH = Patch(
    title="Muon: parameter groups' own lr and weight_decay are ignored",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.19.2,<0.19.7"},
    changes=(
        Edit(
            _CONFIGURE,
            after="if non_muon_params:\n    ...",
            code="param_groups = split(param_groups, model_parameters)",
            uses=(split,),
        ),
        Edit(
            _CONFIGURE,
            before="return optimizer",
            code="refuse_others_checkpoints(optimizer)",
            uses=(refuse_others_checkpoints,),
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7938": "introduced in 0.19.2",
        "https://github.com/deepspeedai/DeepSpeed/pull/8440": "fixed in 0.19.7",
    },
    fixed_in="0.19.7",
    present=(Source(_CONFIGURE, "all_params.extend(item['params'])"),),
    fixed=(Source(_CONFIGURE, "self._muon_param_groups(model_parameters, optimizer_parameters)"),),
    config=lambda job: job.optimizer == "muon",
)


def reproduce(lab: Lab) -> str:
    torch, models = lab.torch, lab.models
    if hasattr(torch, "compiler") and hasattr(torch.compiler, "set_stance"):
        torch.compiler.set_stance("force_eager")  # else the update is compiled on first use
    model = models.MLP()
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
            raise CannotTell(f"deepspeed {version} rejects groups with Muon: {error}") from error
        if "Muon" in str(error):
            raise CannotTell(f"deepspeed {version} has no Muon: {error}") from error
        raise
    loss = 0.0 * engine(models.regression_batch(rank=0, step=0)[0].to(lab.device)).sum()  # leaves only weight decay
    engine.backward(loss)
    engine.step()

    right, wrong = {}, {}
    for name, value in before.items():
        group = groups[value.ndim > 1]
        right[name] = value * (1 - group.get("lr", rate) * group["weight_decay"])
        wrong[name] = value * (1 - rate * decay)
    return lab.reference.compare(
        lab.parameters(engine),
        right,
        {f"those of a decay by {rate * decay:g} per step, not of their groups' 0.05": wrong},
        within=1e-5,
        after="after 1 step",
    )
