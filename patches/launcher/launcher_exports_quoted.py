"""`deepspeed --launcher openmpi` (mpich, impi, mvapich, slurm) adds quotation marks to every exported variable.

Why: the launcher passes PYTHONPATH, NCCL_…, UCX_… and the variables of .deepspeed_env on to the ranks. 0.15.2 puts
    quotation marks around each value, for pdsh, whose command goes through a shell. The other launchers start mpirun or
    srun without one: the marks are part of the value, `UCX_TLS="tcp"`. UCX and NCCL reject or ignore such values, and
    the first and last directory of PYTHONPATH are not found, dsfix's among them.
How: a value without shell metacharacters is passed on unchanged, as in 0.16.5 and later. Others are quoted as before.
    The bug is in the launcher's process, which runs no script: use `python -m dsfix run deepspeed …` or `python -m
    dsfix enable`.
Workaround: The variables are unset where the launcher is started, and given to mpirun: `--launcher_args "-x
    NCCL_DEBUG=INFO"`. You can keep it.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from dsfix.patch import RAN, BugPresent, CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_EXPORT = "deepspeed.launcher.multinode_runner:MultiNodeRunner.add_export"


def for_a_shell(value: str) -> str:
    """The value in quotation marks, if it has characters that a shell would read."""
    return value if re.fullmatch(r"[\w@%+=:,./-]*", value) else f'"{value}"'


PATCH = Patch(
    title="deepspeed --launcher openmpi, mpich, impi or slurm adds quotation marks to exported variables",
    severity=Severity.USABILITY,
    affects={"deepspeed": ">=0.15.2,<0.16.5"},
    changes=(
        Edit(
            _EXPORT,
            after="self.exports[key.strip()] = f'\"{var.strip()}\"'",
            code="self.exports[key.strip()] = for_a_shell(var.strip())",
            uses=(for_a_shell,),
            effect=RAN,
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/6997": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/5878": "introduced in 0.15.2",
        "https://github.com/deepspeedai/DeepSpeed/pull/7071": "fixed in 0.16.5",
    },
    fixed_in="0.16.5",
    fixed=(Source(_EXPORT, "var = var.strip()"),),
    device="cpu",
)


def reproduce(lab: Lab) -> str:
    from unittest import mock

    from ._launching import command

    _ = lab.deepspeed
    hostfile = lab.tmp / "hostfile"
    hostfile.write_text("worker-0 slots=4\nworker-1 slots=4\n")
    wanted = f"PYTHONPATH={os.path.abspath('.')}:/opt/a:/opt/b"
    for launcher in ("mpich", "openmpi", "pdsh"):
        words = ["--hostfile", str(hostfile), "--launcher", launcher, "--no_ssh_check", "--master_addr", "worker-0"]
        with mock.patch.dict(os.environ, PYTHONPATH="/opt/a:/opt/b", UCX_WORDS="a b", OMPI_COMM_WORLD_RANK="0"):
            os.environ.update(OMPI_COMM_WORLD_LOCAL_RANK="0", OMPI_COMM_WORLD_SIZE="1")
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
            started = command([*words, "train.py"])
        (export,) = (word for word in started if "PYTHONPATH=" in word)
        if launcher == "pdsh":  # its shell takes the marks away
            assert "export UCX_WORDS=" in export, export
            export = export.replace('"', "")
            assert f"export {wanted};" in export or "export PYTHONPATH=/opt/a:/opt/b;" in export, export
        elif '="' in export:
            raise BugPresent(f"--launcher {launcher} starts the ranks with {export}")
        elif export not in (wanted, "PYTHONPATH=/opt/a:/opt/b"):
            raise CannotTell(f"--launcher {launcher}: {export}")
    return f"the ranks are started with {wanted}"
