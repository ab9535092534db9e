"""The real engine of the installed DeepSpeed compared with plain PyTorch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dsfix.audit.plan import Plan
from dsfix.audit.trial import trial

PROGRAMS = Path(__file__).parent / "programs"
pytestmark = pytest.mark.usefixtures("has_deepspeed")


def config(stage: int, precision: str = "fp32", **more: Any) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
        "zero_optimization": {"stage": stage, "reduce_bucket_size": 1000, "allgather_bucket_size": 1000},
        **({} if precision == "fp32" else {precision: {"enabled": True, **SCALE.get(precision, {})}}),
        **more,
    }


SCALE = {"fp16": {"initial_scale_power": 8}}
SCHEDULER = {"type": "WarmupLR", "params": {"warmup_max_lr": 0.01, "warmup_num_steps": 3}}
PLANS = {
    **{
        f"{stage} {precision}": Plan(config(stage, precision), ranks=1, steps=3)
        for stage in (1, 2, 3)
        for precision in ("fp32", "bf16", "fp16")
    },
    "0 fp32": Plan(config(0), ranks=1, steps=3),
    "scheduler": Plan(config(1, scheduler=SCHEDULER), ranks=1, steps=4),
    "skipped": Plan(config(2, "fp16"), ranks=1, steps=3, skip_step=1),
    "sgd": Plan(config(2, "bf16", zero_allow_untested_optimizer=True), ranks=1, steps=3, optimizer="SGD", groups=False),
    "zero init": Plan(config(3, "bf16"), ranks=1, steps=3, zero_init=True, lora=True, freeze="base"),
    "experts": Plan(config(2), ranks=1, steps=2, moe=3),
    "lion": Plan(config(3, optimizer={"type": "Lion", "params": {"lr": 1e-3}}), ranks=1, steps=2),
    "muon": Plan(config(2, optimizer={"type": "Muon", "params": {"lr": 1e-2}}), ranks=1, steps=2),
    "checkpointing": Plan(config(2), ranks=1, steps=2, checkpointing="non-reentrant", freeze="none"),
}


def run(program: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / program), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return done.stdout


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("grid")
    plans, results = directory / "plans.json", directory / "results.json"
    plans.write_text(json.dumps({label: plan.dump() for label, plan in PLANS.items()}), encoding="utf-8")
    run("grid.py", str(plans), str(results))
    found: dict[str, Any] = json.loads(results.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("label", PLANS)
def test_one_rank_agrees(verdicts: dict[str, Any], label: str) -> None:
    verdict = verdicts[label]
    assert verdict["differences"] == []
    assert verdict["failed"] == ""
    assert verdict["comparisons"] > 200
    assert set(verdict["unseen"]) <= {"norm"}


@pytest.mark.parametrize(("stage", "precision"), [(2, "bf16"), (3, "bf16")])
def test_two_ranks_agree(stage: int, precision: str) -> None:
    verdict = trial(Plan(config(stage, precision), ranks=2, steps=3, phases=()), timeout=300)
    assert verdict.failed == ""
    assert verdict.differences == ()
    assert verdict.agrees
    assert verdict.comparisons > 400
    assert verdict.unseen == {}
    assert verdict.versions["deepspeed"]
    assert verdict.device


def test_an_exception_of_deepspeed_is_a_difference() -> None:
    broken = {**config(2), "train_batch_size": 7}
    verdict = trial(Plan(broken, ranks=1, steps=1), timeout=300)
    [difference] = verdict.differences
    assert difference.what == "error"
    assert "train_batch" in difference.detail


def test_an_unsupported_optimizer_is_failed() -> None:
    verdict = trial(Plan({**config(2), "optimizer": {"type": "Lamb"}}, ranks=1, steps=1), timeout=300)
    assert "Lamb is not audited: DeepSpeed implements it as a CUDA kernel only" in verdict.failed
    assert not verdict.agrees


def test_a_timeout_is_failed() -> None:
    verdict = trial(Plan(config(2), ranks=1, steps=1), timeout=0.1)
    assert verdict.failed == "timed out after 0.1 s"


@pytest.mark.parametrize("stage", [2, 3])
def test_observing_changes_nothing(stage: int) -> None:
    plan = Plan(config(stage, "bf16"), ranks=1, steps=3)
    assert json.loads(run("unobserved.py", plan.dump()).splitlines()[-1]) == {"same": True, "moved": True}
