"""Which patches are likely to matter for a plan or an error: the search for the needed ones starts with them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from ..catalogue import registry
from ..job import Job
from ..patch import Patch, Severity
from .plan import Plan

_RUNTIME = "deepspeed.runtime"
# module -> the ZeRO stages that execute its code in a training without pipeline parallelism
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


def named_by(errors: Iterable[str], applied: Iterable[str]) -> list[str]:
    """Returns those of `applied` whose symptom matches one of the errors."""
    symptoms = {name: patch.symptom for name, patch in _patches(applied).items() if patch.symptom}
    return [name for name, symptom in symptoms.items() if any(re.search(symptom, error) for error in errors)]


def pools(plan: Plan, applied: Collection[str], suspects: Iterable[str]) -> tuple[list[str], list[list[str]]]:
    """Returns the patches for the import itself, and ever larger sets of the others: suspects, those relevant to this
    stage, all.
    """
    patches = _patches(applied)
    imports = [name for name, patch in patches.items() if patch.severity is Severity.IMPORT]
    experts = [name for name, patch in patches.items() if plan.moe and _concerns_experts(patch)]
    suspected = [name for name in dict.fromkeys([*suspects, *experts]) if name in applied and name not in imports]
    relevant = [n for n, patch in patches.items() if _is_relevant(patch, plan) and n not in (*imports, *suspected)]
    rest = [name for name in sorted(applied) if name not in (*suspected, *relevant, *imports)]
    found: list[list[str]] = []
    chosen: list[str] = []
    for more in (suspected, relevant, rest):
        chosen = [*chosen, *more]
        if more:
            found.append(chosen)
    return imports, found or [[]]


def _patches(names: Iterable[str]) -> dict[str, Patch]:
    known = registry.catalogue()
    return {name: known[name].patch for name in sorted(names) if name in known}


def _concerns_experts(patch: Patch) -> bool:
    return any(change.module.startswith("deepspeed.moe.") for change in patch.changes)


def _is_relevant(patch: Patch, plan: Plan) -> bool:
    if patch.config is not None:
        frozen = plan.freeze != "none" or plan.lora
        job = Job(
            plan.config,
            plain=True,
            ranks=plan.ranks,
            pipeline=False,
            experts=plan.moe > 0,
            frozen=frozen,
            decay=1.0,  # that of the plan's groups and its own optimizer is not in the config
        )
        return patch.severity in _NUMBERS and patch.config(job)
    stages: Sequence[Sequence[int]] = [_STAGES.get(change.module, (0, 1, 2, 3)) for change in patch.changes]
    return patch.severity in _NUMBERS and any(plan.stage in each for each in stages)
