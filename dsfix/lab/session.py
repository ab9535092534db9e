"""The argument of a patch's `reproduce(lab)`."""

from __future__ import annotations

import gc
import importlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from dsfix.lab import accelerator, cuda, ranks
from dsfix.lab.cuda.load import Schedule
from dsfix.lab.distributions import LabUnavailable
from dsfix.patch import BugPresent, CannotTell
from dsfix.settings import cache_directory

# fixed values: the default of gradient_clipping differs between releases
_DEFAULTS: dict[str, Any] = {
    "gradient_clipping": 0.0,
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
}
# 2 GB each by default, and releases through 0.14.0 traverse the whole buffer in each backward pass
_BUCKETS = {"reduce_bucket_size": 1_000_000, "allgather_bucket_size": 1_000_000}


class Lab:
    """One process of a reproduction: torch, DeepSpeed, a device and a rank. A context manager.

    device: "cuda" (a GPU if available, else the emulated device) or "cpu". Nothing is imported before the first access
    to `torch`, `deepspeed`, `device`, `models` or `reference`, which raises CannotTell if something is missing.
    """

    def __init__(self, device: str = "cuda") -> None:
        if device not in ("cuda", "cpu"):
            raise ValueError(f"device must be 'cuda' or 'cpu', got {device!r}")
        self._kind = device

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Destroys the process group, and removes `tmp` unless other ranks use it."""
        if "torch" in self.__dict__ and self.torch.distributed.is_initialized():
            self.torch.distributed.destroy_process_group()
        if "tmp" in self.__dict__ and ranks.SCRATCH not in os.environ:
            shutil.rmtree(self.tmp, ignore_errors=True)

    @cached_property
    def torch(self) -> Any:
        """The module torch, with a usable device."""
        with _cannot_tell():
            ranks.complete_rank_environment(os.environ)
            if self._kind == "cuda" and not accelerator.has_gpu():
                accelerator.load_emulated()
        try:
            import torch
        except ImportError as error:
            raise CannotTell(f"torch cannot be imported: {error}") from error
        if self._kind == "cuda":
            if ranks.local_rank() >= torch.cuda.device_count():
                raise CannotTell(f"needs {ranks.local_world_size()} GPUs, found {torch.cuda.device_count()}")
            torch.cuda.set_device(ranks.local_rank())
        return torch

    def late_streams(self, schedule: str = "late") -> None:
        """From now on, work on the emulated device's streams is done as late as possible, or in the order of another
        schedule, so that a missing wait gives wrong numbers. Call it before creating tensors; on a GPU it has no
        effect.
        """
        if self.emulated:
            cuda.follow(Schedule(schedule))

    @cached_property
    def models(self) -> Any:
        """The module dsfix.lab.models, imported after `torch`."""
        return self._import_with_torch("dsfix.lab.models")

    @cached_property
    def reference(self) -> Any:
        """The module dsfix.lab.reference, imported after `torch`."""
        return self._import_with_torch("dsfix.lab.reference")

    def _import_with_torch(self, name: str) -> Any:
        _ = self.torch  # the emulated device has to be loaded before anything imports torch
        return importlib.import_module(name)

    @cached_property
    def deepspeed(self) -> Any:
        """The module deepspeed, with its accelerator set and its process group initialized."""
        with _cannot_tell():
            version = accelerator.deepspeed_version()
        torch = self.torch
        # compiled ops of different releases must not share a directory
        extensions = cache_directory() / f"extensions-deepspeed{version}-torch{torch.__version__}"
        os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(extensions))
        on_gpu = self._kind == "cuda" and not self.emulated
        if not on_gpu:
            accelerator.prepare()
        import deepspeed

        if self._kind == "cpu":
            accelerator.use_cpu(deepspeed)
        elif self.emulated:
            accelerator.use_emulated_cuda(deepspeed)
        deepspeed.init_distributed(dist_backend="nccl" if on_gpu else "gloo", verbose=False)
        if self.emulated:  # otherwise torch splits it for subgroups, which gloo does not support
            torch.distributed.distributed_c10d._get_default_group().bound_device_id = None
        gc.freeze()  # an engine runs the collector a dozen times, each time over all objects of torch
        return deepspeed

    def import_deepspeed(self, symptom: str) -> Any:
        """`deepspeed`, for a bug of the import itself: raises BugPresent for an error that matches `symptom`."""
        try:
            return self.deepspeed
        except (ImportError, ValueError) as error:
            if re.search(symptom, str(error)):
                raise BugPresent(str(error)) from error
            raise

    @property
    def device(self) -> Any:
        torch = self.torch
        return torch.device("cuda", ranks.local_rank()) if self._kind == "cuda" else torch.device("cpu")

    @property
    def emulated(self) -> bool:
        """Whether `device` is the emulated CUDA device."""
        return self._kind == "cuda" and self.torch is not None and cuda.loaded()

    @property
    def device_name(self) -> str:
        """The GPU's name, "emulated CUDA device" or "CPU"; "" before the first access to `torch`."""
        if "torch" not in self.__dict__:
            return ""
        if self._kind == "cpu":
            return "CPU"
        return accelerator.EMULATED if self.emulated else str(self.torch.cuda.get_device_name())

    @property
    def rank(self) -> int:
        return ranks.rank()

    @property
    def world_size(self) -> int:
        return ranks.world_size()

    @cached_property
    def tmp(self) -> Path:
        """A scratch directory, shared by all ranks of one `launch`; removed at the end."""
        shared = os.environ.get(ranks.SCRATCH)
        return Path(shared) if shared else Path(tempfile.mkdtemp(prefix="dsfix-lab-"))

    def require_ranks(self, number: int) -> None:
        """Raises CannotTell unless the job has exactly this number of ranks."""
        if self.world_size != number:
            raise CannotTell(f"needs {number} ranks, found {self.world_size}")

    def initialize(self, model: Any, config: Mapping[str, Any], **options: Any) -> Any:
        """The engine that `deepspeed.initialize` returns; `options` are passed on.

        Sets defaults for what differs between releases, would compile an operator or needs gigabytes: no gradient
        clipping, torch's Adam, micro-batches of 1, ZeRO buckets of 1_000_000 elements; `config` takes precedence.
        """
        config = {**_DEFAULTS, **config}
        if "zero_optimization" in config:
            config["zero_optimization"] = {**_BUCKETS, **config["zero_optimization"]}
        if "train_batch_size" not in config:
            config.setdefault("train_micro_batch_size_per_gpu", 1)
        optimizer = config.get("optimizer")
        if optimizer is not None and str(optimizer.get("type")).lower() in ("adam", "adamw"):
            config["optimizer"] = {**optimizer, "params": {"torch_adam": True, **optimizer.get("params", {})}}
        return self.deepspeed.initialize(model=model, config=config, **options)[0]

    def parameters(self, engine: Any) -> dict[str, Any]:
        """The full parameters of the engine's module by name, as detached CPU float32 copies. Call it on all ranks."""
        zero = self.deepspeed.zero
        result = {}
        for name, parameter in engine.module.named_parameters():
            # one by one: gathering several at once with gloo returned garbage on some releases
            with zero.GatheredParameters(parameter, enabled=hasattr(parameter, "ds_id")):
                result[name] = parameter.detach().to("cpu", self.torch.float32, copy=True)
        return result


@contextmanager
def _cannot_tell() -> Iterator[None]:
    try:
        yield
    except LabUnavailable as error:
        raise CannotTell(str(error)) from error
