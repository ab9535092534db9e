"""What the rules check: the config, the release that reads it, and what is known about the training around it."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from ..job import AUTO, Job, value_at
from . import keys, placeholders
from .accelerate import Accelerate
from .arguments import Value
from .keys import KnownKeys
from .placeholders import Path
from .reading import Reading, walk

if TYPE_CHECKING:
    from typing_extensions import TypeGuard

# keys of deepspeed.init_inference that other programs' files have, too
_GENERAL = {
    *("args", "base_dir", "checkpoint", "checkpoint_config", "ckpt_config", "config", "dtype", "max_tokens"),
    *("min_tokens", "moe", "mpu", "quant", "tm", "zero"),
}
_PARALLEL = (("tensor_parallel",), ("tp",))  # recognised by their content
_ABOUT_TRAINING = ("optimizer", "scheduler", "gradient_accumulation_steps", "gradient_clipping", "elasticity")


@dataclass
class Facts:
    """Facts about one config.

    plain: "auto" is not filled in before DeepSpeed reads the config. versions: distribution -> version, as for
    rules.fits. world_size: number of processes of the job, None if unknown. in_job: whether the check runs at
    deepspeed.initialize, whose arguments are known. pinned_limited: whether this is WSL. memory: RAM of this machine
    in GB, None if unknown. inference: this is a config of deepspeed.init_inference, and `known` has its keys.
    """

    reading: Reading
    known: KnownKeys
    versions: Mapping[str, str | None]
    plain: bool = False
    world_size: int | None = None
    arguments: Mapping[str, Value] = field(default_factory=dict)
    accelerate: Accelerate | None = None
    in_job: bool = False
    pinned_limited: bool = False
    memory: float | None = None
    inference: bool = False

    @functools.cached_property
    def placeholders(self) -> dict[Path, str]:
        """The keys whose values are placeholders, as in a template."""
        return placeholders.find(self.reading, self.known.keys)

    @functools.cached_property
    def unfilled(self) -> set[Path]:
        """The keys whose values a script or DeepSpeed's autotuning is still to fill in, "auto" apart."""
        return {*self.placeholders, *placeholders.searched(self.reading.content, self.known.keys)}

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """The config, with "auto" for what is unfilled."""
        return placeholders.filled(self.reading.content, self.unfilled, AUTO)

    @property
    def release(self) -> Version:
        return Version(self.versions["deepspeed"] or "0")

    @functools.cached_property
    def job(self) -> Job:
        frozen = True if "lora" in self.arguments else None
        experts = self.arguments.get("moe")
        return Job(
            self._resolved(),
            self.release,
            plain=self.plain and not self.unfilled,
            ranks=self.world_size,
            experts=experts if isinstance(experts, bool) else None,
            frozen=frozen,
            decay=self.number("weight_decay"),
        )

    def _resolved(self) -> dict[str, Any]:
        """Returns the config with the arguments' values in place of "auto"; of two precisions only one is on."""
        config = dict(self.config)
        if "gradient_accumulation_steps" in config:
            config["gradient_accumulation_steps"] = self.accumulation
        if config.get("gradient_clipping") == AUTO and "max_grad_norm" in self.arguments:
            config["gradient_clipping"] = self.arguments["max_grad_norm"]
        for name, other in (("fp16", "bf16"), ("bf16", "fp16")):
            if value_at(config, (name, "enabled")) == AUTO and not self.plain:
                other_on = value_at(config, (other, "enabled"), self.arguments.get(other)) is True
                value = self.arguments.get(name, False if other_on else AUTO)
                config[name] = {**config[name], "enabled": value}
        return config

    def get(self, *path: str, default: Any = None) -> Any:
        return value_at(self.config, path, default)

    def block(self, *path: str) -> Mapping[str, Any]:
        return self.job.block(*path)

    def walk(self) -> Iterator[tuple[Path, Any]]:
        return walk(self.config)

    @property
    def stage(self) -> int | None:
        return self.job.stage

    def device(self, part: str) -> str:
        return self.job.device(part)

    @property
    def optimizer(self) -> str | None:
        """The optimizer that the config names; in lower case if it is one of DeepSpeed's."""
        name = self.block("optimizer").get("type")
        if not isinstance(name, str):
            return None
        return name.lower() if name.lower() in self.known.optimizers else name

    def on(self, section: str) -> bool | None:
        return self.job.on(section)

    def number(self, argument: str) -> float | None:
        value = self.arguments.get(argument)
        return float(value) if is_number(value) else None

    def may_be(self, section: str) -> bool:
        return self.job.may_be(section)

    @property
    def has_auto(self) -> bool:
        return any(value == AUTO for _, value in walk(self.reading.content))

    @property
    def filled_in(self) -> bool:
        """Whether accelerate or transformers reads the config first."""
        return not self.plain and (self.has_auto or self.accelerate is not None)

    @property
    def may_only_infer(self) -> bool:
        """Whether nothing shows that this job trains: ZeRO-Inference is ZeRO-3 without an optimizer."""
        is_training = self.in_job or any(name in self.config for name in _ABOUT_TRAINING) or self.arguments
        offloads = self.device("offload_optimizer") != "none"
        return not is_training and self.stage == 3 and not offloads and self.accelerate is None

    def elsewhere(self, path: Path) -> str | None:
        return keys.elsewhere((keys.INFERENCE, *path) if self.inference else path)

    @property
    def builds_optimizer(self) -> bool:
        """Whether DeepSpeed is known to build the config's optimizer, because the script passes none."""
        if "optimizer" in self.arguments:
            return False
        return self.in_job or self.filled_in

    @property
    def pinned(self) -> bool:
        """This release's default of pin_memory."""
        return self.release >= Version("0.19.5")

    @property
    def data_parallel(self) -> int | None:
        """The number of ranks that DeepSpeed divides the batch by; None if unknown."""
        parallel = self.get("sequence_parallel_size", default=1)
        if self.block("tensor_parallel") or self.world_size is None or not isinstance(parallel, int):
            return None
        return self.world_size if parallel < 1 else self.world_size // parallel

    @property
    def accumulation(self) -> Any:
        """The gradient accumulation steps; "auto" if they are still to be filled in."""
        steps = self.get("gradient_accumulation_steps", default=1)
        return self.arguments.get("gradient_accumulation_steps", AUTO) if steps == AUTO else steps


def is_inference(config: Mapping[str, Any], known: KnownKeys) -> bool:
    """Whether this is a config of deepspeed.init_inference: it has a distinctive key of it, and none of training.

    Keys of any release count, so that a key which the release lacks is reported as such.
    """
    names = [name for name in map(str, config) if not name.startswith(placeholders.COMMENTS)]
    if any(_trains(name, known) and not _infers((name,), known) for name in names):
        return False
    distinctive = (
        path
        for path, _ in walk(config)
        if path[:-1] in _PARALLEL or (len(path) == 1 and path not in _PARALLEL and path[0] not in _GENERAL)
    )
    return any(_infers(path, known) and not _trains("/".join(path), known) for path in distinctive)


def _infers(path: Path, known: KnownKeys) -> bool:
    return known.inference.find(*path) is not None or keys.elsewhere((keys.INFERENCE, *path)) is not None


def _trains(path: str, known: KnownKeys) -> bool:
    return path in keys.table()["keys"] or known.keys.find(*path.split("/")) is not None


def name_of(path: Path) -> str:
    return ".".join(path)


def is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
