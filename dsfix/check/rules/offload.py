"""offload_optimizer and offload_param, and other keys that require ZeRO, or stage 3 of it."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from ...job import AUTO
from ...rules import Match, error, warning
from ..facts import Facts

_PARTS = ("offload_optimizer", "offload_param")
_FLAGS = ("zero_quantized_weights", "zero_quantized_nontrainable_weights", "zero_quantized_gradients")
_STATES = 16  # bytes per parameter with offload_optimizer: fp32 weight, gradient and two moments
_WEIGHTS = 2  # bytes per parameter that offload_param adds


@error("set nvme_path to a directory on a local NVMe disk", "run: 0.14.2 to 0.19.8: AssertionError for offload_param")
def no_nvme_path(facts: Facts) -> Iterator[Match]:
    for part in _PARTS:
        path = facts.get("zero_optimization", part, "nvme_path")
        if facts.stage == 3 and facts.device(part) == "nvme" and path in (None, "none"):
            yield Match(f"zero_optimization.{part}.nvme_path", "not set, but the device is nvme")


@error(
    'pass DeepSpeedCPUAdam, name the optimizer in the config, or set "zero_force_ds_cpu_optimizer": false',
    "run: 0.14.2 to 0.19.8, stages 1 to 3: ZeRORuntimeException",
)
def offload_client_optimizer(facts: Facts) -> Iterator[Match]:
    own = facts.arguments.get("optimizer")
    accepted = ["DeepSpeedCPUAdam", "ZenFlowCPUAdam"]
    if facts.release >= Version("0.17.6"):
        accepted.append("DeepSpeedCPULion")
    offloaded = facts.stage and facts.device("offload_optimizer") in ("cpu", "nvme")
    if own is None or own in accepted or not facts.plain or not offloaded:
        return
    if facts.get("zero_force_ds_cpu_optimizer", default=True):
        what = f"the script passes {own}, but with offload_optimizer DeepSpeed requires DeepSpeedCPUAdam"
        yield Match("zero_force_ds_cpu_optimizer", what)


def _pinned(facts: Facts) -> list[str]:
    """Returns the parts that are offloaded to pinned memory."""
    parts = [part for part in _PARTS if facts.stage and facts.device(part) in ("cpu", "nvme")]
    return [part for part in parts if facts.get("zero_optimization", part, "pin_memory", default=facts.pinned) is True]


@warning('set "pin_memory": false', "https://docs.nvidia.com/cuda/wsl-user-guide: pinned system memory is limited")
def pinned_memory_limited(facts: Facts) -> Iterator[Match]:
    for part in _pinned(facts) if facts.pinned_limited else ():
        yield Match(f"zero_optimization.{part}.pin_memory", "this machine runs WSL 2, which limits pinned memory")


@warning(
    "use more machines, offload less, or offload to nvme",
    "deepspeed.runtime.zero.stage3.estimate_zero3_model_states_mem_needs",
)
def offload_memory(facts: Facts) -> Iterator[Match]:
    parameters = facts.number("parameters")
    if parameters is None or facts.memory is None or not facts.stage:
        return
    states = 0 if "lora" in facts.arguments else _STATES
    bytes_per_parameter = {"offload_optimizer": states, "offload_param": _WEIGHTS}
    parts = [part for part in _PARTS if facts.device(part) == "cpu"]
    need = sum(bytes_per_parameter[part] for part in parts) * parameters / 1e9
    if need > facts.memory:
        what = f"offloads about {need:.0f} GB, but this machine has {facts.memory:.0f} GB of memory"
        yield Match(f"zero_optimization.{parts[0]}", what)


@warning(
    'set "stage3_gather_16bit_weights_on_model_save": true, or convert with zero_to_fp32.py',
    "the source of 0.12.0 to 0.19.8: save_16bit_model returns False",
)
def weights_not_gathered(facts: Facts) -> Iterator[Match]:
    zero = facts.block("zero_optimization")
    names = ("stage3_gather_16bit_weights_on_model_save", "gather_16bit_weights_on_model_save")
    old = "stage3_gather_fp16_weights_on_model_save"
    if facts.stage == 3 and facts.arguments.get("save_16bit") and not any(zero.get(name) for name in (*names, old)):
        yield Match(f"zero_optimization.{names[0]}", "not set: save_16bit_model saves no 16-bit weights")


@warning(
    "set stage 3, or remove the key", "run: 0.14.2 to 0.19.8 with stages 1 and 2: accepted, the same optimizer is built"
)
def needs_stage_3(facts: Facts) -> Iterator[Match]:
    stage = facts.stage
    if stage is None or stage >= 3:
        return
    zero = facts.block("zero_optimization")
    no_effect = f"requires stage 3, has no effect with stage {stage}"
    if facts.device("offload_param") not in ("none", AUTO):
        yield Match("zero_optimization.offload_param", no_effect)
    if isinstance(zero.get("zero_hpz_partition_size"), int) and zero["zero_hpz_partition_size"] > 1:
        yield Match("zero_optimization.zero_hpz_partition_size", no_effect)
    for name in _FLAGS:
        if zero.get(name) is True:
            yield Match(f"zero_optimization.{name}", no_effect)
    if stage and facts.device("offload_optimizer") == "nvme":
        what = f"offloading to nvme requires stage 3, this is stage {stage}"
        yield Match("zero_optimization.offload_optimizer.device", what)


@warning("set stage 1, 2 or 3, or remove the block", "the source of 0.12.0 to 0.19.8")
def offload_without_zero(facts: Facts) -> Iterator[Match]:
    if facts.stage == 0 and facts.device("offload_optimizer") not in ("none", AUTO):
        yield Match("zero_optimization.offload_optimizer", "has no effect with stage 0: offloading requires ZeRO")
