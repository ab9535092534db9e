"""Rules about the toolchain that compiles DeepSpeed's ops when a job first uses one that is not prebuilt."""

from __future__ import annotations

import re
from collections.abc import Iterator

from packaging.version import InvalidVersion, Version

from ...rules import Match, error, warning
from ..facts import EnvironmentFacts

_WHERE = "compiling ops"


@error(
    'install setuptools (`pip install "setuptools<80"` if pkg_resources is missing)',
    "flashinfer-ai/flashinfer#319",
    "nerfstudio-project/gsplat#899",
)
def cpp_extension_broken(facts: EnvironmentFacts) -> Iterator[Match]:
    error = facts.packages.torch_probe.errors.get("cpp_extension", "")
    if error:
        yield Match(_WHERE, f"`import torch.utils.cpp_extension`, which DeepSpeed needs, fails: {error}")


@warning("`pip install ninja`, and put the environment's bin directory on PATH", "#1687")
def ninja_missing(facts: EnvironmentFacts) -> Iterator[Match]:
    if facts.deepspeed_usable and not facts.toolchain.ninja:
        installed = facts.versions.get("ninja")
        why = f": ninja {installed} is installed, but its directory is not on PATH" if installed else ""
        yield Match(_WHERE, f"`ninja --version` fails{why}; compiling ops fails with `Ninja is required`")


@warning("install g++ (Debian, Ubuntu: `apt install g++`), or set CXX", "#3410")
def compiler_missing(facts: EnvironmentFacts) -> Iterator[Match]:
    if facts.deepspeed_usable and not facts.toolchain.compiler_version:
        yield Match(_WHERE, f"no working C++ compiler (CXX, else c++): {_complaint(facts, 'c++')}")


def _complaint(facts: EnvironmentFacts, program: str) -> str:
    complaints = [each for each in facts.toolchain.complaints if each.partition(":")[0].endswith(program)]
    return complaints[0] if complaints else "none is on PATH"


@warning("install them (Debian, Ubuntu: `apt install python3-dev`)", "#3223")
def python_headers_missing(facts: EnvironmentFacts) -> Iterator[Match]:
    if facts.deepspeed_usable and not facts.toolchain.python_headers:
        yield Match(_WHERE, f"the headers of Python {facts.platform.python} (Python.h) are not installed")


@warning(
    "install the CUDA toolkit that torch was built for, and set CUDA_HOME to it",
    "#7452",
    patches=("op_probe_breaks_import",),
)
def cuda_toolkit_missing(facts: EnvironmentFacts) -> Iterator[Match]:
    needed = facts.deepspeed_usable and facts.packages.torch.cuda and facts.accelerators.present
    if facts.toolchain.nvcc or not needed:
        return
    home = facts.toolchain.cuda_home
    what = f"CUDA_HOME is {home}, which has no working bin/nvcc" if home else "no CUDA toolkit found"
    yield Match(_WHERE, f"{what}: GPU ops such as FusedAdam cannot be compiled")


@warning(
    "set CUDA_HOME to the toolkit that torch was built for, or DS_SKIP_CUDA_CHECK=1 at your own risk",
    "#3223",
    affects={"deepspeed": ">=0.12.0,<0.19.8"},  # 0.19.8 compares only when ops are prebuilt
)
def cuda_toolkit_of_another_version(facts: EnvironmentFacts) -> Iterator[Match]:
    nvcc, cuda = facts.toolchain.nvcc, ".".join(facts.packages.torch.cuda.split(".")[:2])
    if (
        not (nvcc and cuda and facts.accelerators.present)
        or nvcc == cuda
        or facts.variables.get("DS_SKIP_CUDA_CHECK") == "1"
    ):
        return
    alike = facts.packages.deepspeed.cuda_alike.get(int(nvcc.split(".")[0]), ())
    if not (nvcc in alike and cuda in alike):
        yield Match(
            _WHERE,
            f"nvcc is from CUDA {nvcc}, but torch was built for CUDA {cuda}: compiling ops, even CPUAdam, fails with "
            "`CUDAMismatchException`",
        )


@warning(
    "install an older g++ and set CXX to it, or install a newer CUDA toolkit",
    "CUDA_GCC_VERSIONS of the installed torch.utils.cpp_extension",
)
def compiler_too_new_for_nvcc(facts: EnvironmentFacts) -> Iterator[Match]:
    tools = facts.toolchain
    below = (facts.packages.torch_probe.fact("cpp_extension", "gcc_below") or {}).get(tools.nvcc)
    if not (below and tools.gcc and facts.packages.torch.cuda and facts.accelerators.present):
        return
    try:
        too_new = Version(tools.compiler_version) >= Version(str(below))
    except InvalidVersion:
        return
    if too_new:
        what = f"nvcc of CUDA {tools.nvcc} requires g++ before {below}, but {tools.compiler_version} is installed"
        yield Match(_WHERE, what)


@warning(
    "install numactl, or set LOCAL_SIZE to the number of ranks per machine",
    "#6565",
    "ran: get_accelerator().device_count() on 0.12.6, 0.13.5, 0.14.2, 0.15.4 (fails) and 0.16.0 (does not)",
    affects={"deepspeed": ">=0.12.0,<0.16.0"},
)
def numactl_missing(facts: EnvironmentFacts) -> Iterator[Match]:
    on_cpu = facts.variables.get("DS_ACCELERATOR") == "cpu" or not (
        facts.accelerators.present or facts.accelerators.others
    )
    sized = re.fullmatch(r"[1-9]\d*", facts.variables.get("LOCAL_SIZE", ""))
    if facts.deepspeed_usable and on_cpu and not sized and not facts.toolchain.numactl:
        yield Match("numactl", "on the CPU, this DeepSpeed counts devices with numactl, which is not installed")
