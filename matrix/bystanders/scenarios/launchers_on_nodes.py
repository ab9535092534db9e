"""The `deepspeed` launcher on several nodes, with files of variables and with a script that is sourced there."""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
from typing import TYPE_CHECKING
from unittest import mock

from matrix.bystanders.scenario import scenario
from matrix.bystanders.scenarios import launchers

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_NAMES = ("OF_HOME", "OF_BOTH", "OF_JOB")


def _environment(words: list[str], until: str, **variables: str) -> dict[str, str]:
    """The variables that the part of the command before `until` leaves in a shell where these are set."""
    line = " ".join(words[words.index("-w") + 2 :])
    before, found, _ = line.partition(until)
    assert found, line
    given = {"PATH": os.defpath, **variables}
    shell = subprocess.run(["bash", "-c", f"{before}\nenv"], env=given, stdout=subprocess.PIPE, text=True, check=True)
    return dict(each.partition("=")[::2] for each in shell.stdout.splitlines() if "=" in each)


def _handed_on(job: Job, home: str, current: str) -> dict[str, str]:
    """The variables that the ranks have of the file in the home directory and of that in the current one."""
    runner = importlib.import_module("deepspeed.launcher.runner")
    paths = []
    for name, text in (("home", home), ("current", current)):
        (job.tmp / name).mkdir(exist_ok=True)
        paths.append(job.tmp / name / runner.DEEPSPEED_ENVIRONMENT_NAME)
        paths[-1].unlink(missing_ok=True)
        if text:
            paths[-1].write_text(text)
    before = os.getcwd()
    os.chdir(job.tmp / "current")
    try:
        with mock.patch.object(runner, "DEEPSPEED_ENVIRONMENT_PATHS", [str(job.tmp / "home"), "."]):
            words = launchers._command(launchers._hosts(job, "--launcher", "pdsh"))
        found = _environment(words, f"cd {os.path.abspath('.')};")
    finally:
        os.chdir(before)
    return {name: found[name] for name in _NAMES if name in found}


@scenario(
    "the launcher on two machines, with a file of variables in the home directory, in the current one, in both",
    works_around=("launcher_env_file_of_home",),
    **launchers._ALONE,
)
def launched_with_files(job: Job) -> None:
    home, current = "OF_HOME=1\nOF_BOTH=home\n", "OF_JOB=2\nOF_BOTH=job\n"
    for label, texts, expected in (
        ("none", ("", ""), {}),
        ("home", (home, ""), {"OF_HOME": "1", "OF_BOTH": "home"}),
        ("current", ("", current), {"OF_BOTH": "job", "OF_JOB": "2"}),
        ("both, of which the second has all of the first", (home, f"OF_HOME=1\n{current}"), None),
    ):
        if expected is None:
            expected = {"OF_HOME": "1", "OF_BOTH": "job", "OF_JOB": "2"}
        job.note(label, repr(expected if job.plain else _handed_on(job, *texts)))


@scenario("the launcher on two machines, with a script to source there and variables to hand on", **launchers._ALONE)
def launched_in_an_environment(job: Job) -> None:
    """The first variable that is handed on is set there already."""
    if job.plain:
        return
    script = job.tmp / "activate.sh"
    script.write_text("export FROM_SCRIPT=1\n")
    given = {"UCX_ONE": "1", "UCX_TWO": "2", "UCX_THREE": "3"}
    options = launchers._hosts(job, "--launcher", "pdsh", "--venv_script", str(script))
    try:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
            words = launchers._command(options, **given)
    except SystemExit:  # releases without --venv_script
        return
    alone = {**given, **{name: value for name, value in os.environ.items() if name.startswith("PYTHON")}}
    found = _environment(words, f"cd {os.path.abspath('.')};", **alone)
    for name in ("FROM_SCRIPT", *given):
        job.bits(name, found.get(name))
