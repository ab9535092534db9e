"""What of a config the audit cannot train, and what it leaves out because it changes no number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable

from .plan import EXPERTS, Plan

Value = Any


def _on(value: Value) -> bool:
    """A block that is switched on, or a flag."""
    return bool(value.get("enabled")) if isinstance(value, Mapping) else value is True


def _several(value: Value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 1


def _positive(value: Value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _any_enabled(value: Value) -> bool:
    """Whether `enabled` is true anywhere below."""
    if not isinstance(value, Mapping):
        return False
    return value.get("enabled") is True or any(_any_enabled(each) for each in value.values())


def _present(value: Value) -> bool:
    return bool(value)


@dataclass(frozen=True)
class Limit:
    """`holds`: whether the value at `path` asks for it. why: the end of the sentence that names the key."""

    path: tuple[str, ...]
    holds: Callable[[Value], bool]
    why: str


#: The numbers of the job depend on these, and the reference does not have them: nothing is audited.
REFUSED = (
    Limit(("tensor_parallel",), _present, "all ranks of the audit are data-parallel, none splits a layer"),
    Limit(("sequence_parallel_size",), _several, "all ranks of the audit are data-parallel, none splits a sequence"),
    Limit(("expert_parallel",), _any_enabled, "AutoEP takes known models apart (--moe: DeepSpeed's own MoE layer)"),
    Limit(("amp",), _on, "Apex casts operations on a GPU only; bf16 and fp16 are audited"),
    Limit(("compression_training",), _any_enabled, "it trains other weights than PyTorch does, on purpose"),
    Limit(("quantize_training",), _on, "it trains other weights than PyTorch does, on purpose"),
    Limit(("weight_quantization",), _any_enabled, "it trains other weights than PyTorch does, on purpose"),
    Limit(("progressive_layer_drop",), _on, "it leaves out layers at random"),
    Limit(("eigenvalue",), _on, "it belongs to quantized training"),
    Limit(("zero_optimization", "zenflow"), _present, "it updates some weights late, on purpose"),
    Limit(("zero_optimization", "mics_shard_size"), _positive, "MiCS needs a model that was built for it"),
    Limit(
        ("zero_optimization", "offload_optimizer", "super_offload"), _on, "it steps before it knows the norm, on a GPU"
    ),
)


def experts(plan: Plan) -> str:
    """Why the plan's experts cannot be trained, in a sentence; "" where they can."""
    if plan.ep_size > 1 and not plan.moe:
        return "--ep-size says how many ranks share the experts of --moe, which is not given"
    if not plan.moe:
        return ""
    if plan.stage == 3:
        return "--moe is for ZeRO stages 0 to 2: DeepSpeed refuses its MoE layer with stage 3"
    if plan.freeze == "base":
        return "--moe needs experts that are trained: not with --freeze base or LoRA"
    if plan.ranks % plan.ep_size or EXPERTS % plan.ep_size:
        return f"{plan.ranks} ranks and {EXPERTS} experts cannot be shared by --ep-size {plan.ep_size}"
    return ""


_MONITOR = "it writes logs only"
_OTHER_CODE = "it acts only through calls that the audit does not make"
_EIGHT_BITS = (
    "its CUDA kernel takes only parameters of a multiple of 8 elements, of which the audit's model has others, and its "
    "rounding moves gradients as far as faults do"
)
_DATA = "it picks the data, and the audit's batches are fixed"

#: These are left out, and the report says so.
DROPPED = (
    *(Limit((name,), _on, _MONITOR) for name in ("tensorboard", "wandb", "csv_monitor", "comet", "comms_logger")),
    *(Limit((name,), _on, _MONITOR) for name in ("flops_profiler", "wall_clock_breakdown", "memory_breakdown")),
    *(Limit((name,), _on, _MONITOR) for name in ("dump_state",)),
    Limit(("steps_per_print",), _present, _MONITOR),
    Limit(("pipeline",), _present, "only a PipelineModule reads it, and the audit's model is none"),
    Limit(
        ("activation_checkpointing",), _present, "only deepspeed.checkpointing reads it (--checkpointing is torch's)"
    ),
    Limit(("sparse_attention",), _present, _OTHER_CODE),
    Limit(("compile",), _present, _OTHER_CODE),
    Limit(("hybrid_engine",), _on, "it is for generation"),
    Limit(("autotuning",), _on, "the launcher reads it; the file is trained as it is"),
    Limit(("elasticity",), _on, "the batch sizes of the audit are its own"),
    Limit(("curriculum_learning",), _on, _DATA),
    Limit(("data_efficiency",), _on, _DATA),
    Limit(("nebula",), _on, "it needs a service that the audit does not have"),
    Limit(("datastates_ckpt",), _present, "it needs a package that the audit does not have"),
    Limit(("checkpoint", "load_universal"), _on, "the audit says itself what is loaded"),
    Limit(("checkpoint", "writer"), _present, "the audit's checkpoints are written by the default writer"),
    *(
        Limit(("zero_optimization", name), _on, _EIGHT_BITS)
        for name in ("zero_quantized_weights", "zero_quantized_nontrainable_weights")
    ),
    Limit(("zero_optimization", "zero_quantized_gradients"), _on, "it quantizes on purpose, with kernels for a GPU"),
)
