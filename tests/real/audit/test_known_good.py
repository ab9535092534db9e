"""If DeepSpeed is correct, the audit agrees, and the observer changes nothing; what cannot be audited says so."""

import json
import os
import sys
from pathlib import Path

import pytest
from packaging.version import Version

from dsfix.audit.plan import PHASES
from tests.processes import ended

PROGRAM = Path(__file__).parent / "programs" / "unobserved.py"
pytestmark = pytest.mark.usefixtures("has_deepspeed")

_OFFLOAD = {"offload_optimizer": {"device": "cpu"}}
_WARMUP = {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 8}}}


@pytest.mark.parametrize(
    ("stage", "precision", "options"),
    [
        pytest.param(0, "fp32", {"ranks": 2, "phases": ("resume", "16bit")}, id="zero0-fp32"),
        pytest.param(1, "bf16", {"config": _WARMUP, "phases": ("resume",)}, id="zero1-bf16-scheduler"),
        # frozen parameters are not restored from a universal checkpoint
        pytest.param(2, "fp32", {"ranks": 2, "freeze": "none", "phases": PHASES}, id="zero2-fp32-every-phase"),
        pytest.param(2, "fp16", {"device": "cuda", "skip_step": 1, "steps": 4, "phases": ("resume",)}, id="zero2-fp16"),
        pytest.param(3, "bf16", {"ranks": 2, "zero": _OFFLOAD, "phases": ("zero_to_fp32",)}, id="zero3-bf16-offload"),
    ],
)
def test_agrees(stage, precision, options, plan, release, tried):
    if release < Version("0.13.0") and precision == "fp32" and stage < 3:
        pytest.skip(
            "it does not train on CPU ranks: unsupported grad type without ZeRO, ZeRO-1/2 modify a view in place"
        )
    if release < Version("0.16.0"):  # torch >= 2.6 does not load the checkpoints of older releases for these
        options = {**options, "phases": tuple(p for p in options["phases"] if p not in ("zero_to_fp32", "universal"))}
    made = plan(stage, precision, **options)

    verdict = tried(made)

    assert verdict.failed == ""
    assert verdict.differences == ()
    assert verdict.comparisons > 100 * made.steps
    assert set(verdict.not_compared) <= {"norm", "zero_to_fp32.py"}  # norm: stage 0; the script needs huggingface_hub


def test_agrees_without_dsfix(plan, release, tried):
    if release < Version("0.14.4"):
        pytest.skip("cannot be imported without dsfix")
    verdict = tried(plan(2, ranks=2), patched=False)

    assert verdict.agrees
    assert verdict.patches == ()


def test_an_exception_of_deepspeed_is_a_difference(plan, tried):
    verdict = tried(plan(2, config={"train_batch_size": 7}))
    [difference] = verdict.differences
    assert difference.what == "error"
    assert "train_batch" in difference.detail


def test_a_timeout_is_failed(plan, tried):
    assert tried(plan(2), timeout=0.1).failed == "timed out after 0.1 s"


@pytest.mark.parametrize("stage", [2, 3])
def test_observing_changes_nothing(plan, stage):
    audited = plan(stage, "bf16", steps=3, device="cuda")
    done = ended([sys.executable, PROGRAM, audited.dump()], None, {**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-6000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"same": True, "moved": True}
