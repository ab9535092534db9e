"""A CUDA device for this process: the GPU where there is one, else the emulated device."""

from __future__ import annotations

import os

import wrapt

from dsfix.lab import accelerator, cuda
from dsfix.lab.distributions import gpu_visible, torch_build
from dsfix.lab.rank_variables import complete_rank_environment, local_world_size

EMULATED = "emulated CUDA device"


def use_cuda() -> str:
    """Give this process CUDA devices; call it before torch is imported. Returns what they are, e.g. "NVIDIA H100".

    On the emulated device a DeepSpeed that is imported later uses its CUDA accelerator, process groups are gloo's even
    where NCCL is asked for, and where no launcher has set RANK and its like this becomes a job of one rank. On a GPU
    nothing is changed. Raises LabUnavailable with one sentence where there is neither.
    """
    if has_gpu():
        import torch

        return str(torch.cuda.get_device_name())
    load_emulated()
    accelerator.answer_nccl_with_gloo()
    accelerator.prepare()
    wrapt.register_post_import_hook(accelerator.use_emulated_cuda, "deepspeed")
    return EMULATED


def has_gpu() -> bool:
    """Whether the installed torch can use a GPU here. Imports torch only where that is likely."""
    if torch_build().gpu is None or not gpu_visible():
        return False
    import torch

    return bool(torch.cuda.is_available())


def load_emulated() -> None:
    """Load the emulated device with one device per local rank, at least 8. Raises LabUnavailable."""
    complete_rank_environment(os.environ)
    cuda.load(devices=max(8, local_world_size()))
