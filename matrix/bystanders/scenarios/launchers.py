"""Jobs that the launcher starts."""

from __future__ import annotations

import base64
import contextlib
import importlib
import json
import os
import subprocess
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

from matrix.bystanders.scenario import Job, scenario, settings

# there is no engine: one job
_ALONE: Any = {
    **{"stage": "0", "offload": ("none",), "precision": ("fp32",), "ranks": ("1",), "accumulation": ("1",)},
    **{"clipping": ("off",), "optimizer": ("SGD",), "overlap_comm": ("unset",), "buckets": ("large",)},
    "partitioning": ("parameters persist",),
}
_MPI = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
_EVERY = [0, 1, 2, 3]


def _command(arguments: Sequence[str], **variables: str) -> list[str]:
    """What `deepspeed ARGUMENTS train.py` would start, in an environment with these variables."""
    from dsfix.patches.launcher._launching import command

    with mock.patch.dict(os.environ, variables):
        if "CUDA_VISIBLE_DEVICES" not in variables:
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        return command([*arguments, "train.py"])  # type: ignore[no-any-return,unused-ignore]


def _started(job: Job, label: str, arguments: Sequence[str], expected: Any = None, **variables: str) -> None:
    """Note host -> devices. expected: None for what releases take in different ways, or refuse."""
    if job.plain:
        if expected is not None:
            job.note(label, repr(expected))
        return
    try:
        words = _command(arguments, **variables)
    except (ValueError, IndexError) as error:
        job.survived(label, error)
        return
    (world,) = (word.partition("=")[2] for word in words if word.startswith("--world_info="))
    found = repr(json.loads(base64.urlsafe_b64decode(world)))
    if expected is None:
        job.bits(label, found)
    else:
        job.note(label, found)


@scenario("the launcher on one machine, with devices that its count covers, or that are refused")
@settings(works_around=("launcher_visible_devices", "launcher_visible_devices_from_0_19_7"), **_ALONE)
def launched_here(job: Job) -> None:
    for visible, counted, options, devices in (
        ("", 4, "", _EVERY),
        ("", 4, "--include localhost:1,3", [1, 3]),
        ("", 4, "--exclude localhost:0", [1, 2, 3]),
        ("", 4, "--num_gpus 2", [0, 1]),
        ("0,1", 2, "", [0, 1]),
        ("0, 1", 2, "", [0, 1]),
        ("2,3", 4, "", [2, 3]),
        ("2,3", 4, "--include localhost:0", [0]),
        ("0,1", 2, "--exclude localhost:0", [1]),
        ("2,3", 2, "--num_gpus 1", [0]),
        ("", 4, "--include localhost:7", None),
        ("0,1", 2, "--include localhost:2", None),
        ("2,3", 2, "--include localhost:0,5", None),
        ("2,3", 2, "--exclude localhost:2", None),
        ("-1", 2, "", None),
        ("GPU-0a1b2c3d", 1, "", None),
    ):
        words = ["--hostfile", f"{os.devnull}/none", *options.split()]
        variables = {"CUDA_VISIBLE_DEVICES": visible} if visible else {}
        expected = None if devices is None else {"localhost": devices}
        label = f"{visible or 'all'} of {counted} {options}"
        if job.plain:
            _started(job, label, words, expected)
            continue
        accelerator = importlib.import_module("deepspeed.accelerator").get_accelerator()
        with mock.patch.object(accelerator, "device_count", return_value=counted):
            _started(job, label, words, expected, **variables)


def _hosts(job: Job, *options: str) -> list[str]:
    hostfile = job.tmp / "hostfile"
    hostfile.write_text("worker-0 slots=4\nworker-1 slots=4\n")
    return ["--hostfile", str(hostfile), "--force_multi", "--no_ssh_check", "--master_addr", "worker-0", *options]


@scenario("the launcher on two machines, with hosts that are included by slots, excluded or limited")
@settings(works_around=("launcher_include_whole_host",), **_ALONE)
def launched_on_hosts(job: Job) -> None:
    both = {"worker-0": _EVERY, "worker-1": _EVERY}
    for options, expected in (
        ("", both),
        ("--include worker-0:0,2@worker-1:1", {"worker-0": [0, 2], "worker-1": [1]}),
        ("--include worker-1:3,3", {"worker-1": [3]}),
        ("--exclude worker-1", {"worker-0": _EVERY}),
        ("--exclude worker-0:0@worker-1:2,3", {"worker-0": [1, 2, 3], "worker-1": [0, 1]}),
        ("--num_nodes 1", {"worker-0": _EVERY}),
        ("--num_gpus 2", {"worker-0": [0, 1], "worker-1": [0, 1]}),
        ("--include worker-9:0", None),
        ("--include worker-0:7", None),
        ("--exclude worker-0@worker-1", None),
    ):
        words = _hosts(job, *options.split())
        _started(job, f"hosts {options}", words, expected)
        _started(job, f"hosts {options}, with visible devices", words, expected, CUDA_VISIBLE_DEVICES="2,3")


@scenario("the launcher hands variables on: through pdsh's shell, and to mpirun with blanks in them", **_ALONE)
def launched_with_exports(job: Job) -> None:
    simple = {"NCCL_DEBUG": "WARN", "UCX_NET_DEVICES": "mlx5_0:1,mlx5_1:1", "MV2_SMP": "1", "UCX_PATH": "/a-b/c.d"}
    others = {"UCX_WORDS": "a b", "NCCL_SOCKET_IFNAME": "^lo,docker0", "UCX_HOME": "~/x", "NCCL_LIST": "a;b|c"}
    for name, value in simple.items():
        if job.plain:
            job.note(f"pdsh: {name}", value)
    if job.plain:
        return
    words = _command(_hosts(job, "--launcher", "pdsh"), **simple, **others)
    (exports,) = (word for word in words if "export " in word)
    # what the shell of the other host makes of them
    shell = ["/bin/sh", "-c", f"{exports}\nenv"]
    ended = subprocess.run(shell, env={"PATH": os.defpath, "HOME": "/home"}, capture_output=True, text=True)
    seen = dict(line.split("=", 1) for line in ended.stdout.splitlines() if "=" in line)
    for name in simple:
        job.note(f"pdsh: {name}", seen[name])
    for name in others:
        job.bits(f"pdsh: {name}", seen.get(name))
    words = _command(_hosts(job, "--launcher", "openmpi"), **simple, **others, **_MPI)
    for name in others:
        job.bits(f"openmpi: {name}", repr([word for word in words if word.startswith(f"{name}=")]))


@scenario("the launcher is itself started by mpirun, and starts another", **_ALONE)
def launched_below_mpirun(job: Job) -> None:
    words = _hosts(job, "--launcher", "openmpi")
    if job.plain:
        job.note("command", repr(["mpirun", "-n", "8", "-hostfile", "train.py"]))
        return
    started = _command(words, **_MPI)
    job.note("command", repr([*started[:4], started[-1]]))
    job.bits("options", repr([word for word in started[5:] if "=" not in word]))  # not the directories of this run
    job.bits("exported", repr(sorted(word.partition("=")[0] for word in started if "=" in word)))
    for options in ("--include worker-0:1", "--num_nodes 1"):
        try:
            _command([*words, *options.split()], **_MPI)
        except ValueError as error:
            job.survived(options, error)


_MAPPINGS = {
    **{"train_micro_batch_size_per_gpu": "--batch", "gradient_accumulation_steps": "--accumulate"},
    **{"lr": "--lr", "clipping": "--clip"},
}
_OPTIMIZER = {"optimizer": {"type": "Adam", "params": {"lr": 0.1}}}


@scenario("the autotuner starts experiments, whose tuned values are at the top or in the config's first part", **_ALONE)
def experiments_of_the_autotuner(job: Job) -> None:
    for label, config, given, expected in (
        (
            "at the top",
            {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, **_OPTIMIZER},
            [],
            ["--batch", "4", "--accumulate", "2", "--lr", "0.1"],
        ),
        (
            "after others",
            {"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": 8},
            ["--batch", "1", "--other", "5"],
            ["--batch", "8", "--other", "5"],
        ),
        (
            "in the first part",
            {**_OPTIMIZER, "zero_optimization": {"stage": 2}, "fp16": {"enabled": True}},
            ["--lr", "0.5"],
            ["--lr", "0.1"],
        ),
        (
            "auto, 0 and false",
            {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": 0, "lr": False},
            ["--batch", "1"],
            ["--batch", "1"],
        ),
        ("nowhere", {"zero_optimization": {"stage": 1}, "fp16": {"enabled": True}}, ["--batch", "1"], ["--batch", "1"]),
        ("in an empty config", {}, [], []),
    ):
        job.note(f"value {label}", repr(expected if job.plain else _passed(job, config, list(given))))


def _passed(job: Job, config: Any, given: list[str]) -> Any:
    """The script's arguments in an experiment with this config."""
    scheduler = importlib.import_module("deepspeed.autotuning.scheduler")
    options = SimpleNamespace(master_port=29500, user_script="train.py", user_args=given)
    manager = scheduler.ResourceManager(options, {"localhost": [0]}, 1, str(job.tmp), str(job.tmp), _MAPPINGS)
    experiment = {"exp_id": 0, "name": "first", "ds_config": config, "num_gpus": 1, "num_nodes": 1}
    with mock.patch.object(scheduler.threading, "Thread") as thread:
        manager.run_job(experiment, [])
    return thread.call_args.kwargs["args"][3]


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
            words = _command(_hosts(job, "--launcher", "pdsh"))
        found = _environment(words, f"cd {os.path.abspath('.')};")
    finally:
        os.chdir(before)
    return {name: found[name] for name in _NAMES if name in found}


@scenario("the launcher on two machines, with a file of variables in the home directory, in the current one, in both")
@settings(works_around=("launcher_env_file_of_home",), **_ALONE)
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


@scenario("the launcher on two machines, with a script to source there and variables to hand on", **_ALONE)
def launched_in_an_environment(job: Job) -> None:
    """The first variable that is handed on is set there already."""
    if job.plain:
        return
    script = job.tmp / "activate.sh"
    script.write_text("export FROM_SCRIPT=1\n")
    given = {"UCX_ONE": "1", "UCX_TWO": "2", "UCX_THREE": "3"}
    options = _hosts(job, "--launcher", "pdsh", "--venv_script", str(script))
    try:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
            words = _command(options, **given)
    except SystemExit:  # releases without --venv_script
        return
    alone = {**given, **{name: value for name, value in os.environ.items() if name.startswith("PYTHON")}}
    found = _environment(words, f"cd {os.path.abspath('.')};", **alone)
    for name in ("FROM_SCRIPT", *given):
        job.bits(name, found.get(name))
