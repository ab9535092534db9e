"""If DeepSpeed is correct, the audit agrees: no rounding error is reported as a difference."""

import pytest
from packaging.version import Version

from dsfix.audit.plan import PHASES

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
    assert set(verdict.unseen) <= {"norm", "zero_to_fp32.py"}  # norm: stage 0; the script needs huggingface_hub


def test_agrees_without_dsfix(plan, release, tried):
    if release < Version("0.14.4"):
        pytest.skip("cannot be imported without dsfix")
    verdict = tried(plan(2, ranks=2), patched=False)

    assert verdict.agrees
    assert verdict.patches == ()
