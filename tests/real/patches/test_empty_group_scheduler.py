"""empty_group_scheduler beyond its reproduction: each kind of scheduler, each stage, checkpoints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

PATCH_ID = "empty_group_scheduler"
PROGRAM = Path(__file__).parent / "programs" / "empty_groups.py"

pytestmark = pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")


def run(directory: Path, **variables: str) -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DSFIX_", "_DSFIX_"))}
    environment.update({name: os.environ[name] for name in ("DSFIX_CACHE",) if name in os.environ})
    environment.update(OMP_NUM_THREADS="1", **variables)
    command = [sys.executable, str(PROGRAM), str(directory)]
    done = subprocess.run(command, env=environment, cwd=directory, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    seen: dict[str, Any] = json.loads((directory / "0.json").read_text(encoding="utf-8"))
    return seen


def test_rates_and_parameters_are_those_of_plain_pytorch(tmp_path: Path) -> None:
    seen = run(tmp_path)
    assert len(seen) == 16
    assert not seen["lambda, resumed from objects"]["names dsfix"]
    for name, case in seen.items():
        assert case["rates"] == [pytest.approx(rates, rel=1e-12) for rates in case["expected"]], name
        assert len(case["rates"]) >= 2
        assert case["rates"][0] != case["rates"][-1]
        if "resumed" not in name:
            assert case["difference"] < 1e-5, name
            assert case["last"] == pytest.approx(case["expected last"], rel=1e-12), name
            assert case["equal"]


def test_without_the_patch_torch_refuses_and_deepspeeds_own_go_by_position(tmp_path: Path) -> None:
    seen = run(tmp_path, DSFIX_SKIP=PATCH_ID)
    errors = {name: case["error"] for name, case in seen.items() if "error" in case}
    if errors:  # torch 2.10 and newer
        assert {"lambda, stage 0", *(f"lambda, stage {stage}, handed over" for stage in range(4))} <= {*errors}
        assert {errors[name] for name in errors if "lambda" in name} == {"zip() argument 2 is longer than argument 1"}
    for name in ("own, stage 0", "warmup, stage 0"):
        assert seen[name]["rates"][-1] != pytest.approx(seen[name]["expected"][-1], rel=0.1)
        # the second that is left is at the rate of the first
        assert seen[name]["rates"][-1][1] == pytest.approx(seen[name]["expected"][-1][0], rel=1e-12)
