"""Which patches can matter to a plan at all, as far as that is cheap to know: a search for a cure begins with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..engine import registry
from ..patch import Patch, Severity
from .plan import Plan

_RUNTIME = "deepspeed.runtime"
# module -> the ZeRO stages in which a training without pipeline runs its code
_STAGES: dict[str, tuple[int, ...]] = {
    f"{_RUNTIME}.pipe.engine": (),
    f"{_RUNTIME}.sequence_parallel.ulysses_sp": (),
    f"{_RUNTIME}.fp16.fused_optimizer": (0,),
    f"{_RUNTIME}.fp16.unfused_optimizer": (0,),
    f"{_RUNTIME}.bf16_optimizer": (0, 1),
    f"{_RUNTIME}.zero.stage_1_and_2": (1, 2),
    f"{_RUNTIME}.zero.stage3": (3,),
    f"{_RUNTIME}.zero.parameter_offload": (3,),
    f"{_RUNTIME}.zero.partition_parameters": (3,),
    f"{_RUNTIME}.zero.partitioned_param_coordinator": (3,),
}
_NUMBERS = (Severity.WRONG_RESULT, Severity.CRASH, Severity.HANG)


def pools(plan: Plan, applied: Iterable[str], suspects: Iterable[str]) -> tuple[list[str], list[list[str]]]:
    """Of `applied`: those for the import itself; and ever larger choices of the others: suspects, what can matter in
    this stage, all.
    """
    applied = sorted(applied)
    known = registry.catalogue()
    patches = {name: known[name].patch for name in applied if name in known}
    imports = [name for name, patch in patches.items() if patch.severity is Severity.IMPORT]
    experts = [name for name, patch in patches.items() if plan.moe and _of_experts(patch)]
    suspected = [name for name in dict.fromkeys([*suspects, *experts]) if name in applied and name not in imports]
    matter = [name for name, patch in patches.items() if _matters(patch, plan) and name not in (*imports, *suspected)]
    rest = [name for name in applied if name not in (*suspected, *matter, *imports)]
    found: list[list[str]] = []
    chosen: list[str] = []
    for more in (suspected, matter, rest):
        chosen = [*chosen, *more]
        if more:
            found.append(chosen)
    return imports, found or [[]]


def _of_experts(patch: Patch) -> bool:
    return any(change.module.startswith("deepspeed.moe.") for change in patch.changes)


def _matters(patch: Patch, plan: Plan) -> bool:
    stages: Sequence[Sequence[int]] = [_STAGES.get(change.module, (0, 1, 2, 3)) for change in patch.changes]
    return patch.severity in _NUMBERS and any(plan.stage in each for each in stages)
