"""Rules about the NVIDIA driver and GPUs, whether torch can use them, and WSL."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...rules import Match, error, note, warning
from ..accelerators import Gpu, visible
from ..facts import EnvironmentFacts

_WHERE = "GPU"
_VARIABLES = (
    "https://docs.nvidia.com/cuda/archive/13.4.3/cuda-programming-guide/05-appendices/environment-variables.html"
)
_OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}
"""CUDA major version -> the oldest driver that supports it, from NVIDIA's table of minor version compatibility."""
_IN_USE = 0.25  # of a GPU's memory; a desktop uses less


def _complains(facts: EnvironmentFacts, pattern: str) -> Iterator[Match]:
    if re.search(pattern, facts.accelerators.complaint, re.I):
        yield Match(_WHERE, f"nvidia-smi: {facts.accelerators.complaint}")


_UNREACHABLE = r"couldn't communicate with the NVIDIA driver"
_MISMATCH = r"Driver/library version mismatch"
_DETACHED = r"Failed to initialize NVML: Unknown Error"
_NONE = r"No devices were found|Unable to determine the device handle|GPU is lost"


@warning("run `nvidia-smi` manually; if it hangs, the driver hangs, and only a reboot helps")
def nvidia_smi_without_answer(facts: EnvironmentFacts) -> Iterator[Match]:
    complaint = facts.accelerators.complaint
    if complaint and not re.search("|".join((_UNREACHABLE, _MISMATCH, _DETACHED, _NONE)), complaint, re.I):
        yield Match(_WHERE, f"nvidia-smi lists no GPU: {complaint}")


@error("install a CUDA build of torch: https://pytorch.org/get-started/locally/")
def torch_without_cuda(facts: EnvironmentFacts) -> Iterator[Match]:
    torch = facts.packages.torch
    if facts.accelerators.present and torch.file and not torch.cuda and not torch.hip:
        version = facts.versions.get("torch") or "(unknown version)"
        yield Match("torch", f"there is an NVIDIA GPU, but torch {version} was built without CUDA: jobs run on the CPU")


@note("start the job on a machine with GPUs, or the container with --gpus all", "mmartial/ComfyUI-Nvidia-Docker#57")
def no_gpu(facts: EnvironmentFacts) -> Iterator[Match]:
    accelerators = facts.accelerators
    if facts.packages.torch.cuda and not accelerators.present and not accelerators.complaint:
        if accelerators.kernel_module:
            what = (
                f"the NVIDIA driver {accelerators.kernel_module} is loaded, but no GPU is available in this container"
            )
        else:
            what = "no NVIDIA GPU found: jobs on this machine run on the CPU"
        yield Match(_WHERE, what)


@error(
    "update the driver, or install a build of torch for an older CUDA",
    "https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html",
)
def driver_too_old(facts: EnvironmentFacts) -> Iterator[Match]:
    cuda, driver = facts.packages.torch.cuda, facts.accelerators.driver
    oldest = _OLDEST_DRIVER.get(_major(cuda))
    works = facts.packages.torch_probe.fact("cuda", "available") is True
    if driver and oldest and _major(driver) < oldest and not works:
        what = f"torch was built for CUDA {cuda}, which requires driver {oldest} or later, but {driver} is installed"
        yield Match(_WHERE, what)


@error(
    "install a build of torch for this GPU: https://pytorch.org/get-started/locally/",
    "pytorch/pytorch#150733",
    "Comfy-Org/ComfyUI#16438",
)
def gpu_without_kernels(facts: EnvironmentFacts) -> Iterator[Match]:
    built_for = str(facts.packages.torch_probe.fact("import", "architectures") or "").split()
    for gpu in facts.accelerators.gpus if built_for else ():
        if gpu.capability and not _runs(gpu, built_for):
            yield Match(
                "torch",
                f"torch has no kernels for GPU {gpu.index} ({gpu.name}, compute capability {gpu.capability}), "
                f"only for {' '.join(built_for)}",
            )


def _runs(gpu: Gpu, built_for: list[str]) -> bool:
    """Compares as torch.cuda does: binaries run within a major version, PTX on any later GPU."""
    major, _, minor = gpu.capability.partition(".")
    for kind, number in re.findall(r"(sm|compute)_(\d+)", " ".join(built_for)):
        if kind == "sm" and number[:-1] == major and int(number[-1]) <= int(minor):
            return True
        if kind == "compute" and int(number) <= int(major + minor):
            return True
    return False


@error("run `python -c 'import torch; torch.cuda.init()'` for the full error; reload the driver or reboot")
def cuda_unavailable(facts: EnvironmentFacts) -> Iterator[Match]:
    probe = facts.packages.torch_probe
    if not (facts.packages.torch.cuda and facts.accelerators.gpus) or list(driver_too_old.find(facts)):
        return
    shown = visible(facts.variables.get("CUDA_VISIBLE_DEVICES"), facts.accelerators.gpus)[0]
    if probe.fact("cuda", "available") is False and shown:
        warning = str(probe.fact("cuda", "warning") or "")
        yield Match(_WHERE, f"torch cannot use the GPUs: {warning or 'torch.cuda.is_available() is False'}")
    elif "cuda" in probe.errors:
        yield Match(_WHERE, f"torch cannot use the GPUs: {probe.errors['cuda']}")


@error("reset the GPUs or reboot: no job can use them until then")
def cuda_does_not_start(facts: EnvironmentFacts) -> Iterator[Match]:
    probe = facts.packages.torch_probe
    if probe.stopped and probe.at == "cuda":
        yield Match(_WHERE, f"torch.cuda.is_available() does not return: {probe.stopped}")


@warning("unset CUDA_VISIBLE_DEVICES, or list GPUs in it", _VARIABLES)
def gpus_hidden(facts: EnvironmentFacts) -> Iterator[Match]:
    value = facts.variables.get("CUDA_VISIBLE_DEVICES")
    if facts.accelerators.gpus and value is not None and value.strip() in ("", "-1"):
        yield Match("CUDA_VISIBLE_DEVICES", f"CUDA_VISIBLE_DEVICES={value!r} hides all GPUs")


@warning("use only GPUs that `nvidia-smi -L` lists", _VARIABLES)
def visible_device_unknown(facts: EnvironmentFacts) -> Iterator[Match]:
    value = facts.variables.get("CUDA_VISIBLE_DEVICES")
    shown, stopped_at = visible(value, facts.accelerators.gpus)
    if facts.accelerators.gpus and stopped_at and value is not None and value.strip() not in ("", "-1"):
        yield Match(
            "CUDA_VISIBLE_DEVICES",
            f"CUDA_VISIBLE_DEVICES={value} names {stopped_at}, but there are {len(facts.accelerators.gpus)} GPUs: "
            f"CUDA ignores the rest of the list and shows {len(shown)}",
        )


@error(
    "unset DS_ACCELERATOR, or set it to one of these",
    "deepspeed/accelerator/real_accelerator.py of the installed release",
)
def accelerator_unknown(facts: EnvironmentFacts) -> Iterator[Match]:
    value, known = facts.variables.get("DS_ACCELERATOR"), facts.packages.deepspeed.accelerators
    if value is not None and known and value not in known:
        yield Match("DS_ACCELERATOR", f"DS_ACCELERATOR must be one of {', '.join(known)}, got {value!r}")


@warning("unset DS_ACCELERATOR", "deepspeed/accelerator/real_accelerator.py")
def accelerator_cpu(facts: EnvironmentFacts) -> Iterator[Match]:
    if facts.variables.get("DS_ACCELERATOR") == "cpu" and facts.accelerators.gpus:
        yield Match("DS_ACCELERATOR", "DS_ACCELERATOR=cpu: DeepSpeed does not use the GPUs")


@note("run `nvidia-smi` to see which processes use it; one may be left over from a crashed job")
def gpu_memory_taken(facts: EnvironmentFacts) -> Iterator[Match]:
    for gpu in visible(facts.variables.get("CUDA_VISIBLE_DEVICES"), facts.accelerators.gpus)[0]:
        if gpu.memory and gpu.used and gpu.used >= _IN_USE * gpu.memory:
            what = f"GPU {gpu.index} has {gpu.used / 1024:.1f} of {gpu.memory / 1024:.1f} GiB in use"
            yield Match(_WHERE, what)


@note("unset it unless you are debugging a CUDA error", _VARIABLES)
def launch_blocking(facts: EnvironmentFacts) -> Iterator[Match]:
    if facts.variables.get("CUDA_LAUNCH_BLOCKING") == "1":
        yield Match("CUDA_LAUNCH_BLOCKING", "CUDA_LAUNCH_BLOCKING=1: each kernel launch blocks, which slows training")


def _major(version: str) -> int:
    head = version.partition(".")[0]
    return int(head) if head.isdecimal() else 0


@error(
    "install or load the NVIDIA driver; after a kernel update, rebuild it (dkms) and reboot",
    "GoogleCloudPlatform/compute-gpu-installation#18",
)
def driver_not_running(facts: EnvironmentFacts) -> Iterator[Match]:
    return _complains(facts, _UNREACHABLE)


@error(
    (
        "reboot: the driver was updated, but the old kernel module is still loaded; in a container, use the "
        "host's libraries (nvidia-container-toolkit)"
    ),
    "NVIDIA/nvidia-container-toolkit#394",
)
def driver_and_libraries_differ(facts: EnvironmentFacts) -> Iterator[Match]:
    return _complains(facts, _MISMATCH)


@error(
    (
        "restart the container; `systemctl daemon-reload` on the host detaches the GPUs again, unless "
        "nvidia-container-toolkit's notice is followed"
    ),
    "NVIDIA/nvidia-container-toolkit#48",
)
def gpus_detached_from_container(facts: EnvironmentFacts) -> Iterator[Match]:
    return _complains(facts, _DETACHED)


@error(
    (
        "run `sudo dmesg | grep NVRM` on the host to see why: a GPU has failed, or the container was started "
        "without GPUs (--gpus all)"
    ),
    "NVIDIA/nvidia-docker#933",
    "akash-network/support#209",
)
def gpu_lost(facts: EnvironmentFacts) -> Iterator[Match]:
    return _complains(facts, _NONE)


@error(
    "convert the distribution in Windows: `wsl --set-version NAME 2`",
    "https://docs.nvidia.com/cuda/archive/12.2.2/wsl-user-guide/index.html",
)
def wsl1_has_no_gpu(facts: EnvironmentFacts) -> Iterator[Match]:
    if facts.platform.wsl == 1:
        yield Match("platform", "this is WSL 1, which does not support GPUs")


@note(
    'set "pin_memory": false in offload_optimizer and offload_param, or give WSL more memory in .wslconfig',
    "#2977",
    "microsoft/WSL#8447",
)
def wsl2_pinned_memory(facts: EnvironmentFacts) -> Iterator[Match]:
    if facts.platform.wsl == 2 and facts.accelerators.present:
        yield Match(
            "platform",
            "this is WSL 2, which limits pinned memory: offload with pin_memory fails with "
            "`CUDA error: out of memory` although memory is free",
        )
