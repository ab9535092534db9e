"""What the audit cannot train, and what it drops from a config because it does not affect the numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Callable

from .draft import Draft, NotAudited

Value = Any


def _on(value: Value) -> bool:
    return bool(value.get("enabled")) if isinstance(value, Mapping) else value is True


def _above(least: int) -> Callable[[Value], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and value > least


def _any_enabled(value: Value) -> bool:
    if not isinstance(value, Mapping):
        return False
    return value.get("enabled") is True or any(_any_enabled(each) for each in value.values())


@dataclass(frozen=True)
class Limit:
    """holds: whether the value at `path` enables it. why: completes the sentence that names the key."""

    path: tuple[str, ...]
    holds: Callable[[Value], bool]
    why: str


#: They affect the numbers and have no reference: the config is not audited.
REFUSED = (
    Limit(("tensor_parallel",), bool, "all ranks of the audit are data-parallel; none splits a layer"),
    Limit(("sequence_parallel_size",), _above(1), "all ranks of the audit are data-parallel; none splits a sequence"),
    Limit(("expert_parallel",), _any_enabled, "AutoEP converts known models only"),
    Limit(("amp",), _on, "Apex casts operations on GPUs only; bf16 and fp16 are audited"),
    Limit(("compression_training",), _any_enabled, "it trains different weights than PyTorch by design"),
    Limit(("quantize_training",), _on, "it trains different weights than PyTorch by design"),
    Limit(("weight_quantization",), _any_enabled, "it trains different weights than PyTorch by design"),
    Limit(("progressive_layer_drop",), _on, "it skips layers at random"),
    Limit(("eigenvalue",), _on, "it belongs to quantized training"),
    Limit(("zero_optimization", "zenflow"), bool, "it updates some weights late by design"),
    Limit(("zero_optimization", "mics_shard_size"), _above(0), "MiCS needs a model built for it"),
    Limit(
        ("zero_optimization", "offload_optimizer", "super_offload"), _on, "on a GPU it steps before the norm is known"
    ),
)


_MONITOR = "it only writes logs"
_OTHER_CODE = "it has an effect only through calls that the audit does not make"
_EIGHT_BITS = (
    "its CUDA kernel takes only parameters with a multiple of 8 elements, which the audit's model does not have, and "
    "its rounding error is as large as the effect of a bug"
)
_DATA = "it selects the data; the audit's batches are fixed"

#: Dropped from the config; the report names them.
DROPPED = (
    *(Limit((name,), _on, _MONITOR) for name in ("tensorboard", "wandb", "csv_monitor", "comet", "comms_logger")),
    *(Limit((name,), _on, _MONITOR) for name in ("flops_profiler", "wall_clock_breakdown")),
    *(Limit((name,), _on, _MONITOR) for name in ("memory_breakdown", "dump_state")),
    Limit(("steps_per_print",), bool, _MONITOR),
    Limit(("pipeline",), bool, "only a PipelineModule reads it; the audit's model is not one"),
    Limit(("activation_checkpointing",), bool, "only deepspeed.checkpointing reads it; the audit's model uses torch's"),
    Limit(("sparse_attention",), bool, _OTHER_CODE),
    Limit(("compile",), bool, _OTHER_CODE),
    Limit(("hybrid_engine",), _on, "it concerns generation"),
    Limit(("autotuning",), _on, "only the launcher reads it; the config is trained as it is"),
    Limit(("elasticity",), _on, "the audit sets its own batch sizes"),
    Limit(("curriculum_learning",), _on, _DATA),
    Limit(("data_efficiency",), _on, _DATA),
    Limit(("nebula",), _on, "it needs a service that the audit does not have"),
    Limit(("datastates_ckpt",), bool, "it needs a package that the audit does not have"),
    Limit(("checkpoint", "load_universal"), _on, "the audit decides what is loaded"),
    Limit(("checkpoint", "writer"), bool, "the audit writes checkpoints with the default writer"),
    *(
        Limit(("zero_optimization", name), _on, _EIGHT_BITS)
        for name in ("zero_quantized_weights", "zero_quantized_nontrainable_weights")
    ),
    Limit(("zero_optimization", "zero_quantized_gradients"), _on, "it quantizes by design, with GPU kernels"),
)


def refuse(draft: Draft) -> None:
    for limit in REFUSED:
        if limit.holds(draft.facts.get(*limit.path)):
            raise NotAudited(f"{'.'.join(limit.path)} is not audited: {limit.why}")


def drop(draft: Draft) -> None:
    dropped = [limit for limit in DROPPED if limit.holds(draft.facts.get(*limit.path))]
    for limit in dropped:
        block = draft.config
        for name in limit.path[:-1]:
            block = block[name]
        del block[limit.path[-1]]
    for why, limits in groupby(sorted(dropped, key=lambda each: each.why), key=lambda each: each.why):
        draft.notes.append(f"without {', '.join('.'.join(each.path) for each in limits)}: {why}")
