"""Muon with parameter groups: AttributeError, 'dict' object has no attribute 'use_muon'.

Why: from 0.17.6 to 0.19.1 DeepSpeed takes what it is given as parameters when it sorts them for Muon and for Adam.
    Groups, as transformers makes them to keep biases and norms without weight decay, are dicts: deepspeed.initialize
    fails.
How: each group is sorted, as 0.19.7 does, and keeps its lr, weight_decay, momentum, betas and eps, which override the
    config's. Groups of experts are not changed: they need what these releases do not have.
Changes: nothing but that such a job trains.
Workaround: Scripts pass a plain list of parameters. You can keep it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_CONFIGURE = "deepspeed.runtime.engine:DeepSpeedEngine._configure_basic_optimizer"


def listed(incoming: Iterable[Any]) -> list[Any]:
    """What the script passes, each group with a list of its own: it may be an iterator."""
    return [_with_list(item) if isinstance(item, dict) else item for item in incoming]


def _with_list(group: dict[str, Any]) -> dict[str, Any]:
    import torch

    parameters = group["params"]
    return {**group, "params": [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)}


def parameters_of(incoming: list[Any]) -> list[Any]:
    """The parameters of all groups, in order; what there is if it has none, or groups of experts."""
    groups = [item for item in incoming if isinstance(item, dict)]
    if not groups or any(group.get("moe") for group in groups):
        return incoming
    took_effect(__name__, "parameter groups were sorted for Muon and Adam; deepspeed.initialize would have failed")
    return [p for item in incoming for p in (item["params"] if isinstance(item, dict) else [item])]


def of_each(halves: list[dict[str, Any]], incoming: list[Any]) -> list[dict[str, Any]]:
    """DeepSpeed's groups for Muon and for Adam, or both halves of each incoming group."""
    groups = [item for item in incoming if isinstance(item, dict)]
    if not groups:
        return halves
    groups.append({"params": [item for item in incoming if not isinstance(item, dict)]})
    result = []
    for group in groups:
        for half in halves:
            own = {id(p) for p in half["params"]}
            parameters = [p for p in group["params"] if id(p) in own]
            says = {key: group[key] for key in _keys(half["use_muon"]) if group.get(key) is not None}
            if parameters:
                result.append({**half, **says, "params": parameters})
    return result


def _keys(use_muon: bool) -> tuple[str, ...]:
    """Muon's or Adam's settings in this release: it takes no others."""
    import inspect

    from deepspeed.runtime.zero.muon.original_muon import muon_update

    if not use_muon:
        return "lr", "betas", "eps", "weight_decay"
    return ("lr", "momentum", "weight_decay", *({"ns_method"} & inspect.signature(muon_update).parameters.keys()))


PATCH = Patch(
    title="Muon with parameter groups: AttributeError, 'dict' object has no attribute 'use_muon'",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.17.6,<0.19.2"},
    changes=(
        Edit(
            _CONFIGURE,
            before="if not all([hasattr(p, 'use_muon') for p in model_parameters]):\n    ...",
            code="incoming = listed(model_parameters)\nmodel_parameters = parameters_of(incoming)",
            uses=(listed, parameters_of),
        ),
        Edit(
            _CONFIGURE,
            after="if non_muon_params:\n    ...",
            code="param_groups = of_each(param_groups, incoming)",
            uses=(of_each,),
        ),
    ),
    symptom=r"AttributeError: 'dict' object has no attribute 'use_muon'",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7509": "introduced in 0.17.6",
        "https://github.com/deepspeedai/DeepSpeed/pull/7938": "fixed in 0.19.2",
    },
    fixed_in="0.19.2",
    fixed=(
        Source(_CONFIGURE, "all_params.extend(item['params'])"),
        Source(_CONFIGURE, "self._muon_param_groups(model_parameters, optimizer_parameters)"),
    ),
    config=lambda job: job.optimizer == "muon",
)


def reproduce(lab: Lab) -> str:
    deepspeed = lab.deepspeed
    from ..moe._experts import run_eagerly
    from .muon_param_groups import reproduce as train

    try:
        import deepspeed.runtime.zero.muon.original_muon as _  # noqa: F401
    except ImportError:
        raise CannotTell(f"deepspeed {deepspeed.__version__} has no Muon") from None
    run_eagerly()  # old torch cannot compile the update on the emulated device
    try:
        return train(lab)
    except CannotTell as reason:
        if isinstance(reason.__cause__, AttributeError):
            raise BugPresent(str(reason.__cause__)) from reason
        raise
