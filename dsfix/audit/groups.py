"""The parameter groups of a plan. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dsfix.audit.plan import Plan


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
    found = [ParameterGroup(matrices, 1.0, 0.1), ParameterGroup(vectors, 0.5, 0.0), ParameterGroup(fast, 2.0, 0.02)]
    return [group for group in found if group.names]
