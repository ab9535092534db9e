"""`deepspeed` on several nodes: ~/.deepspeed_env is ignored if ./.deepspeed_env exists.

Why: the launcher passes on to the ranks the variables of .deepspeed_env in the home directory, then those of
    .deepspeed_env in the current directory. Through 0.13.0, if the second file exists, it is read twice instead: the
    variables of the home directory, such as NCCL_SOCKET_IFNAME, do not reach the ranks. The log names one file twice.
How: each directory's own file is read, as in 0.13.1 and later; if a variable is in both, the current directory's value
    wins. The bug is in the launcher's process, which runs no script: use `python -m dsfix run deepspeed …` or `python
    -m dsfix enable`.
Changes: jobs on several nodes with both files: the ranks have the variables of both, also when they resume from a
    checkpoint.
Workaround: The file in the current directory repeats what the one in the home directory says. You can keep it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dsfix.patch import RAN, BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_MAIN = "deepspeed.launcher.runner:main"
_FILE = "environ_file = os.path.join(environ_path, DEEPSPEED_ENVIRONMENT_NAME)"

PATCH = Patch(
    title="deepspeed on several nodes: ~/.deepspeed_env is ignored if ./.deepspeed_env exists",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.13.1"},
    changes=(Edit(_MAIN, replace=f"if not os.path.isfile(environ_file):\n    {_FILE}", code=_FILE, effect=RAN),),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/4006": "introduced",
        "https://github.com/deepspeedai/DeepSpeed/pull/4992": "fixed in 0.13.1",
    },
    fixed_in="0.13.1",
    present=(Source(_MAIN, "environ_file = DEEPSPEED_ENVIRONMENT_NAME"),),
    device="cpu",
)


def reproduce(lab: Lab) -> str:
    from unittest import mock

    from ._launching import command

    _ = lab.deepspeed
    from deepspeed.launcher import runner

    home, current = lab.tmp / "home", lab.tmp / "job"
    for directory, lines in ((home, "OF_HOME=1\nOF_BOTH=home\n"), (current, "OF_JOB=2\nOF_BOTH=job\n")):
        directory.mkdir()
        (directory / runner.DEEPSPEED_ENVIRONMENT_NAME).write_text(lines)
    hostfile = lab.tmp / "hostfile"
    hostfile.write_text("worker-0 slots=4\nworker-1 slots=4\n")
    words = ["--hostfile", str(hostfile), "--no_ssh_check", "--master_addr", "worker-0", "train.py"]
    before = os.getcwd()
    os.chdir(current)
    try:
        with mock.patch.object(runner, "DEEPSPEED_ENVIRONMENT_PATHS", [str(home), "."]), mock.patch.dict(os.environ):
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
            line = " ".join(command(words))
    finally:
        os.chdir(before)
    line = line.replace('"', "")
    assert "export OF_JOB=2;" in line, line
    assert "export OF_BOTH=job;" in line, line
    if "OF_HOME" not in line:
        raise BugPresent("the ranks have the variables of ./.deepspeed_env and not those of the home directory's")
    assert "export OF_HOME=1;" in line, line
    return "the ranks have the variables of both files"
