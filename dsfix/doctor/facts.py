"""The facts that `doctor` collects, as passed to the rules."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import __version__
from .. import survey as patches
from ..catalogue import registry
from ..engine.verdict import Verdict
from . import accelerators, extensions, memory, packages, platform, programs, toolchain
from .accelerators import Accelerators
from .extensions import Extensions
from .files import Disk, disk, names
from .memory import Memory
from .packages import Packages
from .platform import Platform
from .toolchain import Toolchain

IMPORT_SECONDS = 120.0  # a first import from a network file system can take that long
PROGRAM_SECONDS = 20.0  # nvidia-smi without persistence mode takes seconds per GPU

VARIABLES = (
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUDA_HOME", "CUDA_PATH"),
    *("CUDA_MODULE_LOADING", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "HIP_VISIBLE_DEVICES"),
    *("ROCR_VISIBLE_DEVICES", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"),
    *("PYTORCH_NVML_BASED_CUDA_CHECK", "TORCH_EXTENSIONS_DIR", "TORCH_CUDA_ARCH_LIST", "TORCH_DISTRIBUTED_DEBUG"),
    *("TRITON_CACHE_DIR", "TRITON_HOME", "DS_ACCELERATOR", "DS_SKIP_CUDA_CHECK", "DS_IGNORE_CUDA_DETECTION"),
    *("DS_ENV_FILE", "DS_NVCC_THREADS", "DEEPSPEED_TIMEOUT", "LOCAL_SIZE", "OMP_NUM_THREADS", "MAX_JOBS", "CXX"),
    *("CFLAGS", "LDFLAGS", "LD_LIBRARY_PATH", "TMPDIR"),
)
"""The variables that are shown, together with those that start with one of PREFIXES; no others are read."""
PREFIXES = ("DSFIX_", "NCCL_", "TORCH_NCCL_", "GLOO_", "DS_BUILD_")


@dataclass(frozen=True)
class EnvironmentFacts:
    """Facts about the environment. `variables`: those of VARIABLES and PREFIXES that are set. `enabled`: by `enable` or
    `run`, for this Python."""

    platform: Platform
    accelerators: Accelerators
    toolchain: Toolchain
    memory: Memory
    disks: Mapping[str, Disk]
    infiniband: tuple[str, ...]
    packages: Packages
    extensions: Extensions
    variables: Mapping[str, str]
    verdicts: Mapping[str, Verdict]
    enabled: bool = False

    @property
    def versions(self) -> dict[str, str | None]:
        """The versions that the rules' `affects` are compared with."""
        return {**self.packages.versions, "python": self.platform.python}

    @property
    def deepspeed_usable(self) -> bool:
        return self.packages.versions.get("deepspeed") is not None and bool(self.packages.deepspeed.file)

    def as_json(self) -> dict[str, Any]:
        return {"dsfix": __version__, **dataclasses.asdict(dataclasses.replace(self, verdicts={}))}


def shown_variables(environment: Mapping[str, str]) -> dict[str, str]:
    names = [name for name in sorted(environment) if name in VARIABLES or name.startswith(PREFIXES)]
    return {name: environment[name] for name in names}


def collect(
    root: Path = Path("/"),
    environment: Mapping[str, str] = os.environ,
    import_seconds: float = IMPORT_SECONDS,
    program_seconds: float = PROGRAM_SECONDS,
) -> EnvironmentFacts:
    """Collects all facts; programs run concurrently, each with a time limit in seconds."""
    with ThreadPoolExecutor() as pool:
        try:
            torch_probe = pool.submit(packages.run_probe, "torch", import_seconds, environment)
            deepspeed_probe = pool.submit(packages.run_probe, "deepspeed", import_seconds, environment)
            gpus = pool.submit(accelerators.collect, root, environment, program_seconds)
            tools = pool.submit(toolchain.collect, root, environment, program_seconds)
            static = packages.collect()
            verdicts = patches.verdicts() if registry.catalogue() else {}
            facts = dataclasses.replace(
                static, torch_probe=torch_probe.result(), deepspeed_probe=deepspeed_probe.result()
            )
            if "import" in facts.deepspeed_probe.errors and not facts.torch_probe.failed:
                facts = dataclasses.replace(facts, dsfix_probe=packages.run_probe("dsfix", import_seconds, environment))
            return EnvironmentFacts(
                platform=platform.collect(root, environment),
                accelerators=gpus.result(),
                toolchain=tools.result(),
                memory=memory.collect(root),
                disks={
                    name: disk(path, root)
                    for name, path in (
                        ("temporary files", Path(environment.get("TMPDIR") or "/tmp")),
                        ("home", packages.home(environment)),
                    )
                    if path is not None
                },
                infiniband=tuple(sorted(names(root / "sys/class/infiniband"))),
                packages=facts,
                extensions=extensions.collect(root, environment, static.torch),
                variables=shown_variables(environment),
                verdicts=verdicts,
                enabled="_dsfix_start" in sys.modules,
            )
        except BaseException:
            programs.end_all()
            raise
