"""The environment of a reproduction: this machine's Python and devices, without the user's job, caches and files."""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from dsfix.lab.distributions import LabUnavailable
from dsfix.settings import cache_directory

# What is needed to start this Python, to find its packages, compilers and GPUs, and to select patches. Everything else
# is dropped: rank variables, experiment trackers, caches, log files, thread counts, options of torch and Python.
_NAMES = frozenset(
    (
        *("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ"),
        *("PYTHONPATH", "PYTHONHOME", "PYTHONNOUSERSITE", "PYTHONUTF8", "PYTHONIOENCODING", "VIRTUAL_ENV"),
        *("CC", "CXX", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH"),
        *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_HOME", "CUDA_PATH", "CUDA_MPS_PIPE_DIRECTORY"),
        *("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "TORCH_CUDA_ARCH_LIST", "DS_SKIP_CUDA_CHECK"),
        *("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HSA_OVERRIDE_GFX_VERSION", "ROCM_HOME", "ROCM_PATH"),
        *("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE", "NCCL_SOCKET_IFNAME", "NCCL_CUMEM_ENABLE"),
        # without these some combinations of MKL and OpenMP abort the process
        *("KMP_DUPLICATE_LIB_OK", "MKL_THREADING_LAYER", "MKL_SERVICE_FORCE_INTEL"),
        *("DSFIX_SKIP", "DSFIX_ONLY", "DSFIX_ALSO", "DSFIX_SEVERITY", "DSFIX_DISABLE"),
    )
)
_PREFIXES = ("LC_", "CONDA_", "NIX_")
_FIND = """
import sys
sys.path[:1] == [""] and sys.path.pop(0)
import importlib.util, json
found = {name: importlib.util.find_spec(name) for name in sys.argv[1:]}
print(json.dumps({name: spec and spec.origin for name, spec in found.items()}))
"""


def isolated_environment(scratch: Path, *, path: Path | None = None, skip: Iterable[str] = ()) -> dict[str, str]:
    """A complete environment whose home directory, caches and temporary files are below `scratch`.

    path: first entry of sys.path, for a DeepSpeed installed there. skip: more patches to disable.
    dsfix keeps its own cache, in which the emulated device and DeepSpeed's operators are compiled once.
    """
    home, temporary = scratch / "home", scratch / "tmp"
    for directory in (home, temporary):
        directory.mkdir(parents=True, exist_ok=True)
    inherited = {name: value for name, value in os.environ.items() if name in _NAMES or name.startswith(_PREFIXES)}
    cache = _cache(scratch)
    inherited.update(
        HOME=str(home),
        TMPDIR=str(temporary),
        DSFIX_CACHE=str(cache),
        PYTHONUSERBASE=site.getuserbase(),  # keeps packages installed with --user, which otherwise depend on HOME
        PYTHONDONTWRITEBYTECODE="1",
        NUMBA_CACHE_DIR=str(scratch / "numba"),  # otherwise next to the source
        HF_HUB_OFFLINE="1",
        OMP_NUM_THREADS="1",
        MAX_JOBS="1",
    )
    if cache.exists() and not os.access(cache, os.W_OK):  # a shared read-only cache with the emulated device
        inherited["TORCH_EXTENSIONS_DIR"] = str(scratch / "extensions")
    paths = [str(path or ""), *inherited.get("PYTHONPATH", "").split(os.pathsep)]
    # absolute: processes differ in cwd
    inherited["PYTHONPATH"] = os.pathsep.join(os.path.abspath(each) for each in paths if each)
    inherited["DSFIX_SKIP"] = ",".join(filter(None, [inherited.get("DSFIX_SKIP", ""), *skip]))
    return inherited


def origins(scratch: Path, *packages: str) -> dict[str, str | None]:
    """The file that a reproduction would import for each package, None if it finds none.

    Raises LabUnavailable if a fresh Python cannot be started.
    """
    command = [sys.executable, "-c", _FIND, *packages]
    try:
        done = subprocess.run(
            command,
            env=isolated_environment(scratch),
            cwd=scratch,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        origins: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError):
        raise LabUnavailable(f"{sys.executable} cannot be started in an isolated environment") from None
    return origins


def _cache(scratch: Path) -> Path:
    try:
        return cache_directory().absolute()
    except RuntimeError:  # no HOME, and no passwd entry for the user
        return scratch / "cache"
