"""zero3_checkpoint_recompute beyond its reproduction: dtypes, zero.Init, accumulation, ranks."""

from __future__ import annotations

import json
import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dsfix.catalogue.registry import catalogue
from dsfix.lab.launcher import launch
from dsfix.versions import Fit, gate

PATCH_ID = "zero3_checkpoint_recompute"
PROGRAMS = Path(__file__).parent / "programs"
CASES = ["bf16", "bf16, zero.Init", "fp32", "fp32, zero.Init"]

pytestmark = pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")


@pytest.fixture(autouse=True)
def only_where_it_applies() -> None:
    fit = gate(catalogue()[PATCH_ID].patch.affects)
    if fit.fit is Fit.OUTSIDE:
        pytest.skip(fit.reason)


def run(program: str, directory: Path, ranks: int = 1, **variables: str) -> None:
    """`program` on as many ranks; each writes into `directory`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DSFIX_", "_DSFIX_"))}
    environment.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", **variables)
    command = [sys.executable, str(PROGRAMS / f"{program}.py"), str(directory)]
    for ended in launch(command, ranks=ranks, timeout=300, env=environment, cwd=directory):
        assert ended.returncode == 0, f"rank {ended.rank}: {ended.stdout[-2000:]}{ended.stderr[-6000:]}"


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def is_the_bug(error: str) -> bool:
    return re.search(catalogue()[PATCH_ID].patch.symptom, error) is not None


@pytest.mark.parametrize("ranks", [1, 2])
def test_lora_trains_bit_equal_to_the_run_without_checkpointing(tmp_path: Path, ranks: int) -> None:
    run("recompute", tmp_path, ranks)
    seen = [read(tmp_path / f"{rank}.json") for rank in range(ranks)]
    for cases in seen:
        assert sorted(cases) == CASES
        for case in cases.values():
            assert case["differ"] == []
            assert case["no gradient"] < case["gradients"]
    # the ranks have batches of their own
    assert len({tuple(cases["fp32"]["losses"]) for cases in seen}) == ranks


def test_without_the_patch_it_is_the_checkpoint_error(tmp_path: Path) -> None:
    run("recompute", tmp_path, DSFIX_SKIP=PATCH_ID)
    assert is_the_bug(read(tmp_path / "0.json")["fp32"]["error"])
