"""The page that `doctor` prints: the environment, part by part."""

from __future__ import annotations

from collections.abc import Iterator

from ... import __version__
from ...doctor.facts import EnvironmentFacts
from ...doctor.files import Disk
from ...outcome import Outcome

_GIB = 1 << 30


def page(facts: EnvironmentFacts) -> Iterator[tuple[str, str]]:
    own, packages, tools, memory = facts.platform, facts.packages, facts.toolchain, facts.memory
    yield "dsfix", f"{__version__}, {'' if facts.enabled else 'not '}enabled for this Python"
    yield "python", f"{own.python}, {own.executable} ({own.prefix})"
    yield (
        "platform",
        _joined(
            own.distribution or own.system,
            f"{own.system} {own.kernel} {own.machine}" if own.distribution else f"{own.kernel} {own.machine}",
            own.libc,
            f"WSL {own.wsl}" if own.wsl else "",
            f"in a container ({own.container})" if own.container else "",
        ),
    )
    yield "torch", _torch(facts)
    yield "driver", _driver(facts)
    for gpu in facts.accelerators.gpus:
        used = f" ({gpu.used} MiB in use)" if gpu.used is not None else ""
        size = f", {gpu.memory} MiB{used}" if gpu.memory is not None else ""
        capability = f", compute capability {gpu.capability}" if gpu.capability else ""
        yield f"GPU {gpu.index}", f"{gpu.name}{size}{capability}"
    if facts.accelerators.others:
        yield "accelerators", ", ".join(facts.accelerators.others)
    nccl = packages.torch_probe.fact("cuda", "nccl")
    yield (
        "NCCL",
        _joined(
            str(nccl) if nccl else "not in torch",
            f"InfiniBand {', '.join(facts.infiniband)}" if facts.infiniband else "",
        ),
    )
    home = f"CUDA_HOME: {tools.cuda_home}" if tools.cuda_home else "no CUDA_HOME"
    yield "nvcc", f"{tools.nvcc} ({tools.cuda_home})" if tools.nvcc else f"not found ({home})"
    yield "compiler", f"{tools.compiler} {tools.compiler_version}".strip() or "not found"
    yield (
        "tools",
        _joined(
            f"ninja {tools.ninja}" if tools.ninja else "no ninja",
            "numactl" if tools.numactl else "no numactl",
            "Python.h" if tools.python_headers else "no Python.h",
        ),
    )
    yield (
        "memory",
        _joined(
            f"{_size(memory.available)} of {_size(memory.total)} free",
            f"{_size(memory.swap)} swap" if memory.swap is not None else "",
            f"limited to {_size(memory.limit)} ({_size(memory.limit_used)} used)" if memory.limit is not None else "",
            f"locked memory {'unlimited' if memory.locked == -1 else f'up to {_size(memory.locked)}'}",
            f"/dev/shm {_size(memory.shm)} ({_size(memory.shm_free)} free)"
            if memory.shm is not None
            else "no /dev/shm",
        ),
    )
    yield "disk", "; ".join(f"{name}: {_disk(disk)}" for name, disk in facts.disks.items())
    yield "deepspeed", _deepspeed(facts)
    ops = packages.ops
    if ops:
        yield (
            "ops",
            _joined(
                "prebuilt: " + (", ".join(op for op, (built, _) in ops.items() if built) or "none"),
                "can be built: " + (", ".join(op for op, (built, can) in ops.items() if can and not built) or "none"),
                "cannot be built: "
                + (", ".join(op for op, (built, can) in ops.items() if not can and not built) or "none"),
                between="; ",
            ),
        )
    yield (
        "packages",
        ", ".join(
            f"{name} {version or '(unknown version)'}"
            for name, version in packages.versions.items()
            if version is not None and name not in ("torch", "deepspeed")
        ),
    )
    yield "compiled ops", _extensions(facts)
    outcomes = [verdict.outcome for verdict in facts.verdicts.values()]
    trouble = sum(outcome.trouble for outcome in outcomes)
    yield (
        "patches",
        f"{outcomes.count(Outcome.PENDING)} of {len(outcomes)} apply" + (f", {trouble} in trouble" if trouble else ""),
    )
    yield "variables", "  ".join(f"{name}={value}" for name, value in facts.variables.items()) or "none relevant"


def _torch(facts: EnvironmentFacts) -> str:
    version, torch, probe = facts.versions.get("torch"), facts.packages.torch, facts.packages.torch_probe
    if version is None:
        return "not installed"
    devices = probe.fact("cuda", "devices")
    return _joined(
        version or "unknown version",
        f"built for CUDA {torch.cuda}" if torch.cuda else f"built for ROCm {torch.hip}" if torch.hip else "CPU only",
        f"{_gpus(devices)} visible" if devices is not None and (torch.cuda or torch.hip) else "",
        f"cuDNN {probe.fact('cuda', 'cudnn')}" if probe.fact("cuda", "cudnn") else "",
        "cannot be imported" if probe.failed else "",
    )


def _driver(facts: EnvironmentFacts) -> str:
    accelerators = facts.accelerators
    if accelerators.gpus:
        return f"NVIDIA {accelerators.driver}, {_gpus(len(accelerators.gpus))}"
    if accelerators.complaint:
        return f"nvidia-smi: {accelerators.complaint}"
    if accelerators.present:
        return _joined(f"NVIDIA {accelerators.driver}".strip(), ", ".join(accelerators.devices), "no nvidia-smi")
    return "no NVIDIA GPU"


def _deepspeed(facts: EnvironmentFacts) -> str:
    version, deepspeed = facts.versions.get("deepspeed"), facts.packages.deepspeed
    if version is None:
        return "not installed"
    probe = facts.packages.dsfix_probe or facts.packages.deepspeed_probe
    built = deepspeed.built_with.get("version", "")
    return _joined(
        version or "unknown version",
        deepspeed.file.rpartition("/")[0],
        f"accelerator {probe.fact('import', 'accelerator')}" if probe.fact("import", "accelerator") else "",
        f"built with torch {built}" if built not in ("", "0.0") else "",
        f"{len(deepspeed.prebuilt)} ops prebuilt for {deepspeed.built_for or 'cuda'}"
        if deepspeed.prebuilt
        else "no prebuilt ops",
    )


def _extensions(facts: EnvironmentFacts) -> str:
    extensions = facts.extensions
    if not extensions.root:
        return "no cache directory"
    built = [build.op for build in extensions.builds if build.built is not None]
    locked = [build.op for build in extensions.builds if build.locked is not None]
    return _joined(
        f"{extensions.root}: {', '.join(built) or 'none'}",
        f"locked: {', '.join(locked)}" if locked else "",
        f"{_size(extensions.disk.free)} free" if extensions.disk else "",
    )


def _gpus(number: int) -> str:
    return f"{number} GPU{'' if number == 1 else 's'}"


def _disk(disk: Disk) -> str:
    return f"{disk.path} {_size(disk.free)} free" + (f" ({disk.type})" if disk.type else "")


def _size(size: int | None) -> str:
    if size is None:
        return "?"
    return f"{size / _GIB:.1f} GiB" if size >= _GIB / 10 else f"{size / (1 << 20):.0f} MiB"


def _joined(*parts: str, between: str = ", ") -> str:
    return between.join(filter(None, parts))
