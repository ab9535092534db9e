"""A CUDA device for this process: the GPU if available, else the emulated device."""

from __future__ import annotations

import os

import wrapt

from dsfix.lab import accelerator, cuda
from dsfix.lab.distributions import gpu_likely
from dsfix.lab.rank_variables import complete_rank_environment, local_world_size

EMULATED = "emulated CUDA device"


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
    accelerator.replace_nccl_with_gloo()
    accelerator.prepare()
    wrapt.register_post_import_hook(accelerator.use_emulated_cuda, "deepspeed")
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
