"""`CUDA_VISIBLE_DEVICES=2,3 deepspeed train.py`: ValueError, "No slot '2' specified on host 'localhost'".

Why: without a hostfile the launcher turns CUDA_VISIBLE_DEVICES into `--include localhost:2,3`, and takes as many slots
    as there are devices. Through 0.15.1 it accepts only slots below the number of devices; if only visible devices are
    counted, two here, these are 0 and 1. That is the case if CUDA was used during the import (since 0.14.1 by DeepSpeed
    itself, when it asks which operators can be compiled), or if torch counts without NVML. `--include localhost:2,3`
    with the variable set, which the launcher says that it ignores, fails in the same way.
How: where CUDA_VISIBLE_DEVICES was set and there is no hostfile, the slots that `--include` names are accepted if the
    variable lists them. All others are checked as before. The bug is in the launcher's process, which runs no script:
    use `python -m dsfix run deepspeed …` or `python -m dsfix enable`.
Workaround: CUDA_VISIBLE_DEVICES is unset, and `--include localhost:2,3` or `--num_gpus` given instead. You can keep it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_RUNNER = "deepspeed.launcher.runner"


def with_visible(pool: Any, include: str, of_main: Mapping[str, Any]) -> Any:
    """The pool with as many slots on this machine as `include` needs, if it names devices of CUDA_VISIBLE_DEVICES."""
    visible = str(of_main.get("visible_devices") or of_main.get("cuda_visible_devices") or "")  # renamed in 0.15.1
    numbers = [int(each) for each in visible.split(",") if each.strip().isdecimal()]
    if of_main["multi_node_exec"] or not include.startswith("localhost:"):
        return pool
    asked = include.partition(":")[2].split(",")
    if not all(each.strip().isdecimal() and int(each) in numbers for each in asked):
        return pool
    return {**pool, "localhost": max(pool["localhost"], 1 + max(map(int, asked)))}


PATCH = Patch(
    title="CUDA_VISIBLE_DEVICES=2,3 deepspeed train.py: ValueError, no slot '2' on host 'localhost'",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.12.0,<0.15.2"},
    changes=(
        Edit(
            f"{_RUNNER}:main",
            replace="active_resources = parse_inclusion_exclusion(resource_pool, args.include, args.exclude)",
            code="active_resources = parse_inclusion_exclusion("
            "with_visible(resource_pool, args.include, locals()), args.include, args.exclude)",
            uses=(with_visible,),
            effect=RAN,
        ),
    ),
    symptom=r"launcher/runner\.py.*\n(.*\n){1,12}?.*No slot '\d+' specified on host 'localhost'",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/5818": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/6530": "fixed in 0.15.2",
    },
    fixed_in="0.15.2",
    # 0.19.7 and later have it again
    present=(Source(f"{_RUNNER}:parse_resource_filter", "NODE_SEP = '@'"),),
    fixed=(Source(f"{_RUNNER}:parse_inclusion_exclusion", "node_configs = parse_node_config_list(inclusion)"),),
    device="cpu",
)


def reproduce(lab: Lab) -> str:
    _ = lab.deepspeed
    for arguments in ([], ["--include", "localhost:2,3"], ["--include", "localhost:3"]):
        try:
            started = _devices("2,3", 2, arguments)
        except ValueError as error:
            if "No slot '" in str(error):
                raise BugPresent(f"CUDA_VISIBLE_DEVICES=2,3 deepspeed {' '.join(arguments)}: {error}") from error
            raise
        assert started == ([3] if "localhost:3" in arguments else [2, 3]), started
    # as without the variable, and where torch has counted all devices
    assert _devices("", 4, ["--include", "localhost:1,3"]) == [1, 3]
    assert _devices("2,3", 4, []) == [2, 3]
    assert _devices("2,3", 4, ["--include", "localhost:0"]) == [0]
    assert _devices("2,3", 2, ["--num_gpus", "1"]) == [0]
    return "with CUDA_VISIBLE_DEVICES=2,3 the launcher starts ranks on the devices 2 and 3"


def _devices(visible: str, counted: int, arguments: list[str]) -> list[int]:
    """The devices that the launcher gives to its ranks, where torch has counted so many."""
    from unittest import mock

    from deepspeed.launcher import runner

    from ._launching import started

    with mock.patch.dict(os.environ), mock.patch.object(runner.get_accelerator(), "device_count", return_value=counted):
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        if visible:
            os.environ["CUDA_VISIBLE_DEVICES"] = visible
        return started(["--hostfile", f"{os.devnull}/none", *arguments, "train.py"])["localhost"]
