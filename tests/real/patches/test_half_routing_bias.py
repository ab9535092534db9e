"""half_routing_bias beyond its reproduction: DeepSeek-V3 of transformers, loaded by transformers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

PATCH_ID = "half_routing_bias"
PROGRAM = Path(__file__).parent / "programs" / "routing_bias.py"

pytestmark = pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")


def run(directory: Path, stage: int, section: str, **variables: str) -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DSFIX_", "_DSFIX_"))}
    environment.update({name: os.environ[name] for name in ("DSFIX_CACHE",) if name in os.environ})
    environment.update(OMP_NUM_THREADS="1", **variables)
    command = [sys.executable, str(PROGRAM), str(directory), str(stage), section]
    done = subprocess.run(command, env=environment, cwd=directory, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    seen: dict[str, Any] = json.loads((directory / "0.json").read_text(encoding="utf-8"))
    return seen


@pytest.mark.parametrize(("stage", "section"), [(3, "bf16"), (3, "fp16"), (1, "bf16")])
def test_routers_keep_the_biases_of_the_checkpoint(tmp_path: Path, stage: int, section: str) -> None:
    seen = run(tmp_path, stage, section)
    assert seen["partitioned"] is (stage == 3)
    assert seen["dtypes"] == ["torch.float32"]
    assert seen["distinct"] == [seen["experts"]] * 2
    assert seen["losses"][1] < seen["losses"][0]


def test_without_the_patch_they_are_rounded(tmp_path: Path) -> None:
    seen = run(tmp_path, 3, "bf16", DSFIX_SKIP=PATCH_ID)
    assert seen["dtypes"] == ["torch.bfloat16"]
    assert seen["distinct"] == [1, 1]
