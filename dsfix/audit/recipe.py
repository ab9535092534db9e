"""The optimizer of a plan: its kind and its parameter groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dsfix.audit.plan import Plan, Unsupported

# options of the script's own optimizer, by class name in torch.optim
_CLIENT: Mapping[str, Mapping[str, Any]] = {
    "AdamW": {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8},
    "Adam": {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8},
    "SGD": {"lr": 5e-2, "momentum": 0.9},
    "Adagrad": {"lr": 1e-2},
}

# DeepSpeed's optimizers without a reference, and why
_WITHOUT: Mapping[str, str] = {
    "lamb": "DeepSpeed implements it as a CUDA kernel only",
    "lion": "its kernels move parameters whose gradient and momentum are zero",
    "muon": "rounding dominates its updates in half precision and would hide any bug",
}


@dataclass(frozen=True)
class ParameterGroup:
    """A parameter group: the names of its parameters, its lr as a factor, its weight decay."""

    names: tuple[str, ...]
    rate: float
    weight_decay: float


def script_groups(parameters: Mapping[str, Any], plan: Plan) -> list[ParameterGroup]:
    """Returns the script's groups: matrices, vectors without decay, embedding and gate at a higher rate; or one group.

    The single group includes the frozen parameters, as `model.parameters()` in a script does.
    """
    if not plan.groups:
        return [ParameterGroup(tuple(parameters), 1.0, 0.1)]
    trained = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
    fast = tuple(name for name in trained if name.startswith(("embed.", "gate.", "blocks.0.mix.lora_b")))
    vectors = tuple(name for name, parameter in trained.items() if parameter.dim() < 2 and name not in fast)
    matrices = tuple(name for name in trained if name not in fast and name not in vectors)
    groups = [ParameterGroup(matrices, 1.0, 0.1), ParameterGroup(vectors, 0.5, 0.0), ParameterGroup(fast, 2.0, 0.02)]
    return [group for group in groups if group.names]


@dataclass(frozen=True)
class Recipe:
    """kind: "adam" (L2 decay), "adamw" (decoupled), "sgd" or "adagrad". options: of the first group."""

    kind: str
    options: Mapping[str, Any]

    def groups(self, plan: Plan, groups: list[ParameterGroup]) -> list[dict[str, Any]]:
        """Returns each group's options, with its parameter names as "params"."""
        own = [
            {"lr": self.options["lr"] * group.rate, "weight_decay": group.weight_decay} if plan.groups else {}
            for group in groups
        ]
        return [{**self.options, **each, "params": list(group.names)} for each, group in zip(own, groups)]


def recipe(plan: Plan) -> Recipe:
    """Returns the recipe of the plan's optimizer. Raises Unsupported if the reference does not implement it."""
    if plan.optimizer:
        if plan.optimizer not in _CLIENT:
            raise Unsupported(f"torch.optim.{plan.optimizer} is not audited; supported: {', '.join(_CLIENT)}")
        return Recipe(plan.optimizer.lower(), {**_CLIENT[plan.optimizer], "weight_decay": 0.1})
    section = plan.config.get("optimizer")
    if not section:
        raise Unsupported("the config has no optimizer and none is given: nothing would be trained")
    name, options = str(section["type"]).lower(), dict(section.get("params") or {})
    options.pop("torch_adam", None)
    decoupled = options.pop("adam_w_mode", True)
    if name in ("adam", "adamw"):
        # DeepSpeed's Adam decouples weight decay unless adam_w_mode is false; its AdamW always does
        return Recipe("adamw" if name == "adamw" or decoupled else "adam", _defaults(options, 1e-3))
    if name in ("sgd", "adagrad"):
        return Recipe(name, _defaults(options, 1e-2 if name == "adagrad" else 1e-3))
    if name in _WITHOUT:
        raise Unsupported(f"{section['type']} is not audited: {_WITHOUT[name]}")
    raise Unsupported(f"the audit has no reference for the optimizer {section['type']}")


def _defaults(options: dict[str, Any], rate: float) -> dict[str, Any]:
    return {"lr": rate, "weight_decay": 0.0, **options}
