"""What the rules check: the config, the release that reads it, and what is known about the training around it."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from ..job import AUTO, Job, value_at
from .accelerate import Accelerate
from .arguments import Value
from .keys import Known
from .reading import Reading

if TYPE_CHECKING:
    from typing_extensions import TypeGuard

Path = tuple[str, ...]


@dataclass
class Facts:
    """Facts about one config.

    plain: "auto" is not filled in before DeepSpeed reads the config. versions: distribution -> version, as for
    rules.fits. world_size: number of processes of the job, None if unknown. in_job: whether the check runs at
    deepspeed.initialize, whose arguments are known. pinned_limited: whether this is WSL. memory: RAM of this machine
    in GB, None if unknown.
    """

    reading: Reading
    known: Known
    versions: Mapping[str, str | None]
    plain: bool = False
    world_size: int | None = None
    arguments: Mapping[str, Value] = field(default_factory=dict)
    accelerate: Accelerate | None = None
    in_job: bool = False
    pinned_limited: bool = False
    memory: float | None = None

    @property
    def config(self) -> dict[str, Any]:
        return self.reading.content

    @property
    def release(self) -> Version:
        return Version(self.versions["deepspeed"] or "0")

    @functools.cached_property
    def job(self) -> Job:
        """What the conditions of patches look at."""
        steps = {"gradient_accumulation_steps": self.accumulation}
        config = {**self.config, **steps} if "gradient_accumulation_steps" in self.config else self.config
        frozen = True if "lora" in self.arguments else None
        return Job(config, self.release, plain=self.plain, ranks=self.world_size, frozen=frozen)

    def get(self, *path: str, default: Any = None) -> Any:
        """Returns the value at that path, or the default."""
        return value_at(self.config, path, default)

    def block(self, *path: str) -> Mapping[str, Any]:
        """Returns the block at that path, or an empty one."""
        return self.job.block(*path)

    def walk(self) -> Iterator[tuple[Path, Any]]:
        """Yields every key with its value, blocks before their content."""
        todo: list[tuple[Path, dict[str, Any]]] = [((), self.config)]
        while todo:
            above, block = todo.pop(0)
            for name, value in block.items():
                path = (*above, str(name))
                yield path, value
                if isinstance(value, dict):
                    todo.append((path, value))

    @property
    def stage(self) -> int | None:
        """The ZeRO stage; None if it is still to be filled in."""
        return self.job.stage

    def device(self, part: str) -> str:
        """Returns the device of `offload_optimizer` or `offload_param`: none, cpu or nvme."""
        return self.job.device(part)

    @property
    def optimizer(self) -> str | None:
        """The optimizer that the config names; in lower case if it is one of DeepSpeed's."""
        name = self.block("optimizer").get("type")
        if not isinstance(name, str):
            return None
        return name.lower() if name.lower() in self.known.optimizers else name

    def on(self, section: str) -> bool | None:
        """Whether `enabled` is true in fp16, bf16 or torch_autocast; None if it is still to be filled in."""
        return self.job.on(section)

    def number(self, argument: str) -> float | None:
        """Returns a numeric model argument, None if it is not given."""
        value = self.arguments.get(argument)
        return float(value) if is_number(value) else None

    def may_be(self, section: str) -> bool:
        """Whether it is enabled, or still to be filled in."""
        return self.job.may_be(section)

    @property
    def has_auto(self) -> bool:
        return any(value == AUTO for _, value in self.walk())

    @property
    def builds_optimizer(self) -> bool:
        """Whether DeepSpeed is known to build the config's optimizer, because the script passes none."""
        if "optimizer" in self.arguments:
            return False
        return self.in_job or (not self.plain and (self.has_auto or self.accelerate is not None))

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


def name_of(path: Path) -> str:
    return ".".join(path)


def is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
