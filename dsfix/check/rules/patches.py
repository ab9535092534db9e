"""Known bugs of the release that this config triggers: one rule per patch whose condition the config alone shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Callable

from ...catalogue import registry
from ...rules import Found, Level, Rule
from ..facts import AUTO, Facts

_ZERO = "zero_optimization"


def _offloaded(facts: Facts) -> bool:
    return facts.device("offload_optimizer") == "cpu"


def _accumulates(facts: Facts, least: int) -> bool:
    steps = facts.accumulation
    return steps == AUTO or (isinstance(steps, int) and steps >= least)


def _clips(facts: Facts) -> bool:
    return bool(facts.get("gradient_clipping"))


def _fp32_gradients(facts: Facts) -> bool:
    return bool(facts.get("data_types", "grad_accum_dtype") == "fp32")


def _either(facts: Facts) -> bool:
    return facts.may_be("bf16") or facts.may_be("fp16")


def _flag(*path: str) -> Callable[[Facts], bool]:
    return lambda facts: facts.get(*path) is True


def _muon(facts: Facts) -> bool:
    return facts.optimizer == "muon"


def _hpz(facts: Facts) -> bool:
    size = facts.get(_ZERO, "zero_hpz_partition_size", default=1)
    return facts.stage == 3 and isinstance(size, int) and size > 1


def _fetches_by_all_reduce(facts: Facts) -> bool:
    return facts.stage == 3 and any(
        facts.get(_ZERO, name) is True
        for name in ("stage3_use_all_reduce_for_fetch_params", "use_all_reduce_for_fetch_params")
    )


_CONDITIONS: dict[str, Callable[[Facts], bool]] = {
    "bf16_gradients_unreduced": lambda facts: (
        facts.may_be("bf16") and (facts.stage == 0 or (facts.stage == 1 and _fp32_gradients(facts)))
    ),
    "bf16_stage0_load_checkpoint": lambda facts: facts.stage == 0 and facts.may_be("bf16"),
    "bf16_stage0_no_update": lambda facts: facts.stage == 0 and facts.may_be("bf16"),
    "bf16_zero1_last_microbatch_local": lambda facts: facts.stage == 1 and _fp32_gradients(facts),
    "bf16_zero1_silently_off": lambda facts: facts.stage == 1 and _fp32_gradients(facts),
    "elastic_checkpoint_scalar_step": _flag(_ZERO, "elastic_checkpoint"),
    "fp16_optimizer_never_steps": lambda facts: facts.stage == 0 and facts.may_be("fp16"),
    "fp16_zero1_overflow_deadlock": lambda facts: facts.stage == 1 and facts.may_be("fp16"),
    "frozen_parameters_decayed": lambda facts: facts.stage == 0 and _either(facts),
    "hpz_stale_secondary": _hpz,
    "muon_param_groups": _muon,
    "muon_reduce_scatter": lambda facts: _muon(facts) and facts.stage in (1, 2),
    "stage0_checkpoint_loses_optimizer": lambda facts: facts.stage == 0 and facts.may_be("bf16"),
    "universal_checkpoint_load_subgroups": _flag("checkpoint", "load_universal"),
    "universal_checkpoint_local_rank": _flag("checkpoint", "load_universal"),
    "universal_checkpoint_param_groups": _flag("checkpoint", "load_universal"),
    "zero12_offload_nonfinite_norm_long": lambda facts: (
        facts.stage in (1, 2) and _offloaded(facts) and facts.on("fp16") is not True
    ),
    "zero12_offload_overflow_repeats": lambda facts: (
        facts.stage in (1, 2) and _offloaded(facts) and _fp32_gradients(facts) and _either(facts)
    ),
    "zero2_accumulation_drops_microbatches": lambda facts: (
        facts.stage == 2 and not _offloaded(facts) and _accumulates(facts, 2)
    ),
    "zero2_offload_accumulation_drops": lambda facts: facts.stage == 2 and _offloaded(facts) and _accumulates(facts, 3),
    "zero3_allreduce_fetch_padding": _fetches_by_all_reduce,
    "zero3_allreduce_fetch_wait": _fetches_by_all_reduce,
    "zero3_bf16_nonfinite_step": lambda facts: facts.stage == 3 and facts.may_be("bf16"),
    "zero3_bucket_never_resets": lambda facts: facts.stage == 3,
    "zero3_offload_clip_device": lambda facts: facts.stage == 3 and _offloaded(facts) and _clips(facts),
}


def _find(patch_id: str) -> Callable[[Facts], Iterator[Found]]:
    title = registry.catalogue()[patch_id].patch.title

    def find(facts: Facts) -> Iterator[Found]:
        if _CONDITIONS[patch_id](facts):
            yield Found("", title)

    return find


RULES = tuple(
    Rule(
        id=f"bug_{patch_id}",
        level=Level.NOTE,
        affects=registry.catalogue()[patch_id].patch.affects,
        find=_find(patch_id),
        remedy="put `import dsfix` on the first line of the script",
        evidence=tuple(registry.catalogue()[patch_id].patch.upstream),
        patches=(patch_id,),
    )
    for patch_id in _CONDITIONS
    if patch_id in registry.catalogue()
)
