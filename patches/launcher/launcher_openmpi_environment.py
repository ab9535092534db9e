"""`deepspeed --launcher openmpi`: EnvironmentError, "MPI environment variables are not set".

Why: since 0.16.4 the launcher requires OMPI_COMM_WORLD_RANK and other variables before it starts mpirun, which only
    then sets them for the ranks. The launcher cannot be used.
How: the variables are read only if they are set. The bug is in the launcher's process, which runs no script: use
    `python -m dsfix run deepspeed …` or `python -m dsfix enable`.
Workaround: OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_LOCAL_RANK and OMPI_COMM_WORLD_SIZE are set by hand before the
    launcher starts. You can keep it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_VALIDATE = "deepspeed.launcher.multinode_runner:OpenMPIRunner.validate_args"

PATCH = Patch(
    title="deepspeed --launcher openmpi: EnvironmentError, MPI environment variables are not set",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.16.4,<0.18.4"},
    changes=(
        Edit(
            _VALIDATE,
            replace="self._setup_mpi_environment()",
            code="self._setup_mpi_environment() if 'OMPI_COMM_WORLD_RANK' in os.environ else None",
            effect="MPI variables were not read (unpatched: EnvironmentError)",
            when="'OMPI_COMM_WORLD_RANK' not in os.environ",
        ),
    ),
    symptom=r"multinode_runner\.py.*\n(.*\n){1,12}?.*(OSError|EnvironmentError): MPI environment variables are not set",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/7711": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/6979": "introduced in 0.16.4",
        "https://github.com/deepspeedai/DeepSpeed/pull/7751": "fixed in 0.18.4",
    },
    fixed_in="0.18.4",
    fixed=(Source(_VALIDATE, "super().validate_args()\nif self.args.include != '' or self.args.exclude != '': ..."),),
    device="cpu",
)


def reproduce(lab: Lab) -> str:
    from unittest import mock

    from ._launching import command

    _ = lab.deepspeed
    hostfile = lab.tmp / "hostfile"
    hostfile.write_text("worker-0 slots=4\nworker-1 slots=4\n")
    words = ["--hostfile", str(hostfile), "--launcher", "openmpi", "--no_ssh_check", "--master_addr", "worker-0"]
    with mock.patch.dict(os.environ):
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        try:
            started = command([*words, "train.py"])
        except OSError as error:
            if str(error).startswith("MPI environment variables are not set"):
                raise BugPresent(f"--launcher openmpi: {error}") from error
            raise
    assert started[:5] == ["mpirun", "-n", "8", "-hostfile", str(hostfile)], started
    assert started[-1] == "train.py", started
    return "the launcher starts mpirun with the ranks of both hosts"
