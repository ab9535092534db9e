"""The CUDA device, a GPU or the emulated one, and DeepSpeed's accelerator without a GPU.

The latter is its CUDA class on the emulated device, or its CPU class, both with gloo.
"""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import importlib.metadata
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import wrapt
from packaging.version import Version

from dsfix.lab import cuda
from dsfix.lab.distributions import LabUnavailable, gpu_likely, hide_triton
from dsfix.lab.ranks import complete_rank_environment, local_world_size

EMULATED = "emulated CUDA device"
# DeepSpeed's CPU accelerator imports these two unconditionally through this release
LAST_WITH_INTEL = Version("0.14.0")
INTEL = ("intel_extension_for_pytorch", "oneccl_bindings_for_pytorch")
_COLLECTIVES = (
    *("all_gather", "all_gather_into_tensor", "all_reduce", "all_to_all", "all_to_all_single", "broadcast"),
    *("gather", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter"),
)
_SHARED_MEMORY_BUILDERS = ("ShareMemCommBuilder", "CCLCommBuilder")


def use_cuda() -> str:
    """Gives this process CUDA devices; call it before torch is imported. Returns their name, e.g. "NVIDIA H100".

    On the emulated device a DeepSpeed imported later uses its CUDA accelerator, process groups use gloo even if NCCL is
    requested, and without a launcher's RANK variables the process becomes a job of one rank. On a GPU nothing changes.
    Raises LabUnavailable if neither device is available.
    """
    if has_gpu():
        import torch

        return str(torch.cuda.get_device_name())
    load_emulated()
    replace_nccl_with_gloo()
    prepare()
    wrapt.register_post_import_hook(use_emulated_cuda, "deepspeed")
    return EMULATED


def has_gpu() -> bool:
    """Whether the installed torch can use a GPU here. Imports torch only if that is likely."""
    if not gpu_likely():
        return False
    import torch

    return bool(torch.cuda.is_available())


def load_emulated() -> None:
    """Loads the emulated device with one device per local rank, at least 8. Raises LabUnavailable."""
    complete_rank_environment(os.environ)
    cuda.load(devices=max(8, local_world_size()))


def deepspeed_version() -> str:
    """The installed DeepSpeed's version. Raises LabUnavailable if it is not installed."""
    try:
        return importlib.metadata.version("deepspeed")
    except importlib.metadata.PackageNotFoundError:
        raise LabUnavailable("deepspeed is not installed") from None


def prepare() -> None:
    """Call before `import deepspeed` without a GPU: with the accelerator "cuda" it requires a CUDA toolkit."""
    hide_triton()
    os.environ["DS_ACCELERATOR"] = "cpu"
    # otherwise the CPU accelerator of 0.14 and 0.15 runs numactl to count NUMA nodes
    os.environ.setdefault("LOCAL_SIZE", str(local_world_size()))
    try:
        version = Version(deepspeed_version())
    except LabUnavailable:
        return
    if version <= LAST_WITH_INTEL:
        for name in INTEL:
            stub = ModuleType(name)
            stub.__spec__ = importlib.machinery.ModuleSpec(name, None)
            sys.modules.setdefault(name, stub)


def use_emulated_cuda(deepspeed: Any) -> None:
    """Call after `import deepspeed`: DeepSpeed's own CUDA accelerator, with gloo in place of NCCL."""
    accelerator = importlib.import_module("deepspeed.accelerator.cuda_accelerator").CUDA_Accelerator()
    accelerator._communication_backend_name = "gloo"
    deepspeed.accelerator.set_accelerator(accelerator)
    _remove_stubs()


def replace_nccl_with_gloo() -> None:
    """Call after loading the emulated device: process groups with NCCL, as accelerate requests, use gloo."""
    from torch.distributed import distributed_c10d

    initialize = distributed_c10d.init_process_group

    @functools.wraps(initialize)
    def call(backend: str | None = None, *args: Any, **options: Any) -> None:
        initialize("gloo" if backend == "nccl" else backend, *args, **options)

    for module in (distributed_c10d, importlib.import_module("torch.distributed")):
        module.init_process_group = call  # type: ignore[attr-defined]


def use_cpu(deepspeed: Any) -> None:
    """Call after `import deepspeed`: its CPU accelerator without the shared-memory collectives, which need compiling.

    Collectives are synchronous: DeepSpeed waits only for the last of several, which suffices on a GPU.
    """
    accelerator = deepspeed.accelerator.get_accelerator()
    accelerator._communication_backend_name = "gloo"
    create_op_builder = accelerator.create_op_builder

    def create(class_name: str) -> Any:
        return None if class_name in _SHARED_MEMORY_BUILDERS else create_op_builder(class_name)

    accelerator.create_op_builder = create
    _finish_collectives()
    _remove_stubs()


def _finish_collectives() -> None:
    from torch import distributed

    def finishing(collective: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(collective)
        def call(*args: Any, **options: Any) -> Any:
            work = collective(*args, **options)
            if work is not None:
                work.wait()
            return work

        return call

    for name in _COLLECTIVES:
        setattr(distributed, name, finishing(getattr(distributed, name)))


def _remove_stubs() -> None:
    # other packages check sys.modules for these
    for name in INTEL:
        module = sys.modules.get(name)
        if module is not None and getattr(module.__spec__, "loader", None) is None:
            del sys.modules[name]
