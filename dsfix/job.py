"""What a patch's `config` condition may use: a job's config, as its DeepSpeed reads it, and its model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

AUTO = "auto"
_OLDEST = Version("0")


def value_at(config: Mapping[str, Any], path: Sequence[str], default: Any = None) -> Any:
    """The value at that path of a config, or the default."""
    value: Any = config
    for name in path:
        if not isinstance(value, Mapping) or name not in value:
            return default
        value = value[name]
    return value


@dataclass
class Job:
    """A config and what is known of the model.

    config: the content of the config; values may still be "auto". release: of DeepSpeed. plain: nothing replaces
    "auto". ranks: processes of the job, None where unknown. pipeline, experts, frozen: whether the model is a
    PipelineModule, has MoE layers, has parameters without gradients; None where the model is unknown. decay: the
    weight decay of the optimizer that the script passes, None where unknown.
    """

    config: Mapping[str, Any]
    release: Version = _OLDEST
    plain: bool = False
    ranks: int | None = None
    pipeline: bool | None = None
    experts: bool | None = None
    frozen: bool | None = None
    decay: float | None = None

    def get(self, *path: str, default: Any = None) -> Any:
        """The value at that path, or the default."""
        return value_at(self.config, path, default)

    def number(self, *path: str, default: float = 0) -> float:
        """The number at that path; the default if it is missing or "auto"."""
        value = self.get(*path)
        return value if isinstance(value, (int, float)) else default

    def block(self, *path: str) -> Mapping[str, Any]:
        """The block at that path, or an empty one."""
        value = self.get(*path)
        return value if isinstance(value, Mapping) else {}

    @property
    def stage(self) -> int | None:
        """The ZeRO stage; None if it is still "auto"."""
        value = self.get("zero_optimization")
        if isinstance(value, bool):  # an old form
            return int(value)
        stage = self.block("zero_optimization").get("stage", 0)
        if stage == AUTO:
            return 0 if self.plain else None
        try:
            return int(stage)
        except (TypeError, ValueError, OverflowError):
            return 0

    def device(self, part: str) -> str:
        """The device of `offload_optimizer` or `offload_param`: none, cpu, nvme."""
        old = {"offload_optimizer": "cpu_offload", "offload_param": "cpu_offload_param"}[part]
        if self.get("zero_optimization", old) is True:
            return "cpu"
        return str(self.block("zero_optimization", part).get("device", "none"))

    @property
    def offloads_optimizer(self) -> bool:
        """Whether the optimizer is offloaded to the CPU."""
        return self.device("offload_optimizer") == "cpu"

    def on(self, section: str) -> bool | None:
        """Whether fp16, bf16 or torch_autocast is enabled; None if that is still "auto"."""
        value = self._precision(section).get("enabled", False)
        if value == AUTO:
            return self.any_string_is_true if self.plain else None
        if isinstance(value, str):
            return self.any_string_is_true or value.lower() in ("true", "1", "yes", "on", "t", "y")
        return bool(value)

    def may_be(self, section: str) -> bool:
        """Whether fp16, bf16 or torch_autocast is enabled, or "auto"."""
        return self.on(section) is not False

    @property
    def half(self) -> bool:
        """Whether fp16 or bf16 is enabled, or "auto"."""
        return self.may_be("fp16") or self.may_be("bf16")

    def _precision(self, section: str) -> Mapping[str, Any]:
        name = "bfloat16" if section == "bf16" and "bf16" not in self.config else section
        return self.block(name)

    @property
    def any_string_is_true(self) -> bool:
        """Whether this release treats any string in fp16.enabled and bf16.enabled as true."""
        return self.release < Version("0.17.1")

    @property
    def clips(self) -> bool:
        """Whether gradients are clipped, or may be ("auto")."""
        return bool(self.get("gradient_clipping"))

    @property
    def accumulation(self) -> Any:
        """Micro-batches per step, or "auto"."""
        return self.get("gradient_accumulation_steps", default=1)

    def accumulates(self, at_least: int = 2) -> bool:
        """Whether a step has, or may have ("auto"), that many micro-batches."""
        steps = self.accumulation
        return steps == AUTO or (isinstance(steps, int) and steps >= at_least)

    @property
    def overlaps_buckets(self) -> bool:
        """Whether ZeRO-1 or ZeRO-2 fills a bucket with gradients while another is being reduced."""
        options = self.block("zero_optimization")
        stages = (1, 2) if self.release >= Version("0.13.0") else (2,)  # before, ZeRO-1 never overlaps
        contiguous = options.get("contiguous_gradients") is not False
        return self.stage in stages and options.get("overlap_comm") is True and contiguous

    @property
    def fp32_gradients(self) -> bool:
        """Whether gradients are accumulated in fp32."""
        return bool(self.get("data_types", "grad_accum_dtype") == "fp32")

    @property
    def fused_adam(self) -> bool | None:
        """Whether the config's optimizer is DeepSpeed's FusedAdam or a 1-bit Adam; None if the script passes one."""
        if self.optimizer is None:
            return None
        adam = self.optimizer in ("adam", "adamw", "onebitadam", "zerooneadam")
        return adam and not self.get("optimizer", "params", "torch_adam")

    @property
    def decays(self) -> bool:
        """Whether the optimizer is known to have a weight decay."""
        return max(self.decay or 0, self.number("optimizer", "params", "weight_decay")) > 0

    @property
    def optimizer(self) -> str | None:
        """The optimizer named in the config, in lower case; None if the script passes one."""
        name = self.block("optimizer").get("type")
        return name.lower() if isinstance(name, str) else None
