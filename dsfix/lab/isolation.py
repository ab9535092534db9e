"""The environment of a reproduction: this machine's Python and devices, nothing of the user's job, caches or files."""

from __future__ import annotations

import os
import site
from pathlib import Path

from dsfix.lab.cuda.build import cache_directory

# a job's place among its ranks, trackers that would record a run, caches that are not under HOME
_PREFIXES = (
    *("SLURM_", "OMPI_", "PMI_", "PMIX_", "PALS_", "MPI_", "TORCHELASTIC_", "AZ_BATCH", "DLTS_", "DLWS_"),
    *("WANDB_", "MLFLOW_", "COMET_", "CLEARML_", "HF_", "TRITON_", "TORCHINDUCTOR_", "XDG_"),
)
_NAMES = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("TORCH_EXTENSIONS_DIR", "TORCH_HOME", "TRANSFORMERS_CACHE", "CUDA_CACHE_PATH", "MPLCONFIGDIR", "TMPDIR"),
    *("DSFIX_REPORT", "DSFIX_STRICT", "DSFIX_LOG_LEVEL", "_DSFIX_ANNOUNCED"),
)


def isolated(scratch: Path) -> dict[str, str]:
    """A whole environment in which the home directory, the caches and the temporary files are below `scratch`.

    dsfix's own cache stays what it is: the emulated device and DeepSpeed's compiled operators are built there once.
    """
    home, temporary = scratch / "home", scratch / "tmp"
    for directory in (home, temporary):
        directory.mkdir(parents=True, exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if name not in _NAMES and not name.startswith(_PREFIXES)}
    kept.update(
        HOME=str(home),
        TMPDIR=str(temporary),
        DSFIX_CACHE=str(cache_directory().absolute()),
        PYTHONUSERBASE=site.getuserbase(),  # packages that were installed with --user are found below HOME otherwise
        HF_HUB_OFFLINE="1",
    )
    if "PYTHONPATH" in kept:  # the reproduction runs in a directory of its own
        kept["PYTHONPATH"] = os.pathsep.join(
            os.path.abspath(part) for part in kept["PYTHONPATH"].split(os.pathsep) if part
        )
    return kept
