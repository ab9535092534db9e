"""Which of DeepSpeed's tests are run, and which are excluded and why."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from pathlib import Path

#: family -> files below `tests/`; their location depends on the release
FILES: Mapping[str, tuple[str, ...]] = {
    "ZeRO": ("unit/runtime/zero/test_*.py", "unit/v1/zero/test_*.py"),
    "half precision": ("unit/runtime/half_precision/test_*.py", "unit/v1/half_precision/test_*.py"),
    "checkpoint": ("unit/checkpoint/test_*.py",),
    "MoE": ("unit/moe/test_moe.py", "unit/v1/moe/test_moe.py"),
    "pipeline": ("unit/runtime/pipe/test_*.py", "unit/pipe/test_*.py"),
    "Ulysses": ("unit/sequence_parallelism/test_*.py", "unit/ulysses_alst/test_tiled_compute.py"),
    "engine": (
        "unit/runtime/test_ds_initialize.py",
        "unit/runtime/test_no_sync_ctxt.py",
        "unit/runtime/test_lr_schedulers.py",
        "unit/runtime/test_multi_output_model.py",
        "unit/runtime/test_multiple_models.py",
        "unit/runtime/test_ds_config_dict.py",
        "unit/runtime/test_ds_config_model.py",
        "unit/runtime/test_autocast.py",
        "unit/runtime/activation_checkpointing/test_*.py",
    ),
}

_UNCHANGED = "no patch changes the code they run"

#: pattern of ids -> why they are not run
LEFT_OUT: Mapping[str, str] = {
    "*test_nvme_checkpointing.py*": "asynchronous I/O with an NVMe device",
    "*half_precision/test_fp8.py*": "transformer_engine, on a GPU",
    "*zero/test_zero_config.py*": _UNCHANGED,
    "*zero/test_zero_tiled.py*": _UNCHANGED,
    "*checkpoint/test_autotp_uc_checkpoint.py*": _UNCHANGED,
    "*pipe/test_pipe_schedule.py*": _UNCHANGED,
    "*pipe/test_topology.py*": _UNCHANGED,
}


def files(tests: Path) -> list[str]:
    """The selected files of this release, relative to `tests`."""
    paths = (path for patterns in FILES.values() for pattern in patterns for path in sorted(tests.glob(pattern)))
    return list(dict.fromkeys(path.relative_to(tests).as_posix() for path in paths if not left_out(path.as_posix())))


def left_out(test: str) -> str:
    """Why the test (or file) is not run; "" if it is."""
    return next((why for pattern, why in LEFT_OUT.items() if fnmatch.fnmatchcase(test, pattern)), "")


def family(test: str) -> str:
    """The test's family, "other" if it is in none."""
    path = test.partition("::")[0]
    for name, patterns in FILES.items():
        if any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns):
            return name
    return "other"


def sampled(tests: Iterable[str], limit: int | None) -> list[str]:
    """At most `limit` evenly spaced parameters of each test function."""
    functions: dict[str, list[str]] = {}
    for test in tests:
        functions.setdefault(test.partition("[")[0], []).append(test)
    chosen: set[str] = set()
    for function in functions.values():
        count = min(limit or len(function), len(function))
        chosen.update(function[number * len(function) // count] for number in range(count))
    return [test for function in functions.values() for test in function if test in chosen]
