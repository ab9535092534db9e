"""What the rules check: the config, the release that reads it, and what is known about the training around it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from .accelerate import Accelerate
from .arguments import Value
from .keys import Known
from .reading import Reading

if TYPE_CHECKING:
    from typing_extensions import TypeGuard

AUTO = "auto"
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

    def get(self, *path: str, default: Any = None) -> Any:
        """Returns the value at that path, or the default."""
        value: Any = self.config
        for name in path:
            if not isinstance(value, dict) or name not in value:
                return default
            value = value[name]
        return value

    def block(self, *path: str) -> dict[str, Any]:
        """Returns the block at that path, or an empty one."""
        value = self.get(*path)
        return value if isinstance(value, dict) else {}

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
        value = self.get("zero_optimization")
        if isinstance(value, bool):  # deprecated form
            return int(value)
        stage = self.block("zero_optimization").get("stage", 0)
        if stage == AUTO:
            return 0 if self.plain else None
        try:
            return int(stage)
        except (TypeError, ValueError, OverflowError):
            return 0

    def device(self, part: str) -> str:
        """Returns the device of `offload_optimizer` or `offload_param`: none, cpu or nvme."""
        old = {"offload_optimizer": "cpu_offload", "offload_param": "cpu_offload_param"}[part]
        if self.get("zero_optimization", old) is True:
            return "cpu"
        return str(self.block("zero_optimization", part).get("device", "none"))

    @property
    def optimizer(self) -> str | None:
        """The optimizer that the config names; in lower case if it is one of DeepSpeed's."""
        name = self.block("optimizer").get("type")
        if not isinstance(name, str):
            return None
        return name.lower() if name.lower() in self.known.optimizers else name

    def on(self, section: str) -> bool | None:
        """Whether `enabled` is true in fp16, bf16 or torch_autocast; None if it is still to be filled in."""
        value = self._precision(section).get("enabled", False)
        if value == AUTO:
            return self._any_string_is_true if self.plain else None
        if isinstance(value, str):
            return self._any_string_is_true or value.lower() in ("true", "1", "yes", "on", "t", "y")
        return bool(value)

    def _precision(self, section: str) -> dict[str, Any]:
        name = "bfloat16" if section == "bf16" and "bf16" not in self.config else section
        return self.block(name)

    @property
    def _any_string_is_true(self) -> bool:
        """Whether this release treats any string in fp16.enabled and bf16.enabled as true."""
        return self.release < Version("0.17.1")

    def number(self, argument: str) -> float | None:
        """Returns a numeric model argument, None if it is not given."""
        value = self.arguments.get(argument)
        return float(value) if is_number(value) else None

    def may_be(self, section: str) -> bool:
        return self.on(section) is not False

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
