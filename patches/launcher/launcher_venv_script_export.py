"""`deepspeed --venv_script FILE` with pdsh: the first exported variable does not reach the ranks.

Why: the command for the nodes begins with `source FILE export FIRST=…; export SECOND=…;`, without a semicolon after
    FILE: the shell passes `export FIRST=…` to the script as arguments. Which variable is lost depends on the
    environment of the launcher: NCCL_…, UCX_…, PYTHON…, or one of .deepspeed_env. Nothing fails.
How: adds the semicolon, as in 0.17.5 and later. The bug is in the launcher's process, which runs no script: use `python
    -m dsfix run deepspeed …` or `python -m dsfix enable`.
Changes: jobs on several nodes with `--venv_script` and pdsh have the first variable, too; whatever depends on it (a
    network interface, a module's directory, the script's seed) now takes effect, also when a job resumes from a
    checkpoint.
Workaround: The semicolon is given with the file, `--venv_script "FILE;"`, or `"FILE &&"`. You can keep it: no second
    semicolon is added.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dsfix.patch import RAN, BugPresent, CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_COMMAND = "deepspeed.launcher.multinode_runner:PDSHRunner.get_cmd"


def source(script: str) -> str:
    """The command with a semicolon, unless the script's name has something behind it that ends a command already."""
    ended = script.rstrip(" \t").endswith((";", "&", "|", "\n"))
    return f"source {script}" + ("" if ended else ";")


PATCH = Patch(
    title="deepspeed --venv_script with pdsh: the first exported variable does not reach the ranks",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.17.1,<0.17.5"},
    changes=(
        Edit(
            _COMMAND,
            replace='deepspeed_launch = [f"source {self.args.venv_script}"] + deepspeed_launch',
            code="deepspeed_launch = [source(self.args.venv_script)] + deepspeed_launch",
            uses=(source,),
            effect=RAN,
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7215": "introduced in 0.17.1",
        "https://github.com/deepspeedai/DeepSpeed/pull/7469": "fixed in 0.17.5",
    },
    fixed_in="0.17.5",
    fixed=(Source(_COMMAND, 'f"source {self.args.venv_script};"'),),
    device="cpu",
)


def reproduce(lab: Lab) -> str:
    import subprocess
    from unittest import mock

    from ._launching import command

    _ = lab.deepspeed
    from deepspeed.launcher import runner

    hostfile, script = lab.tmp / "hostfile", lab.tmp / "activate.sh"
    hostfile.write_text("worker-0 slots=4\nworker-1 slots=4\n")
    script.write_text("export FROM_SCRIPT=1\n")
    words = ["--hostfile", str(hostfile), "--no_ssh_check", "--master_addr", "worker-0", "--venv_script", str(script)]
    given = {"UCX_ONE": "1", "UCX_TWO": "2", "UCX_THREE": "3"}
    with mock.patch.object(runner, "DEEPSPEED_ENVIRONMENT_PATHS", []), mock.patch.dict(os.environ, given, clear=False):
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        try:
            started = command([*words, "train.py"])
        except SystemExit as error:
            raise CannotTell(f"deepspeed {lab.deepspeed.__version__} has no --venv_script") from error
    line = " ".join(started[started.index("-w") + 2 :])
    before_start, found, _ = line.partition(f"cd {os.path.abspath('.')};")
    assert found, line
    names = [part.split()[-1].partition("=")[0] for part in before_start.split(";") if "=" in part]
    # what pdsh's shell on a node makes of it
    shell = subprocess.run(["bash", "-c", f"{before_start} env"], env={}, stdout=subprocess.PIPE, text=True, check=True)
    environment = dict(each.partition("=")[::2] for each in shell.stdout.splitlines())
    assert environment["FROM_SCRIPT"] == "1", before_start
    missing = [name for name in names if name not in environment]
    if missing == names[:1]:
        raise BugPresent(f"of {len(names)} variables the ranks lack the first, {missing[0]}: {before_start}")
    assert not missing, before_start
    assert {name: environment[name] for name in given} == given, environment
    return f"the ranks have all of {len(names)} variables"
