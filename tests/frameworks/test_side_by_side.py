"""What axolotl, ms-swift and trl change about DeepSpeed themselves, before dsfix and after it."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from dsfix.catalogue.registry import catalogue
from dsfix.versions import RangeMatch, gate

PROGRAM = Path(__file__).parent / "programs" / "side_by_side.py"
TROUBLE = ("conflict", "drifted", "failed")

pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("deepspeed", "accelerate", "peft", "trl"))
    or gate(catalogue()["zero3_delegating_wrapper"].patch.affects).fit is RangeMatch.OUTSIDE,
    reason="DeepSpeed, accelerate, peft or trl is not installed, or ZeRO-3 has no fault with wrappers here",
)


@pytest.mark.parametrize("order", ["first", "last"])
def test_training_is_right_and_the_report_true(order, run, tmp_path):
    out = tmp_path / "seen.json"
    done = run(PROGRAM, str(out), order)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    seen = json.loads(out.read_text(encoding="utf-8"))
    for case in ("checkpoint wrapper", "modules to save", "generation"):
        assert seen[case]["losses"] == pytest.approx(seen[case]["expected"], rel=1e-6)
        assert len(set(seen[case]["hooks"])) == 1  # a wrapper that forwards attributes gained two more with each step
        assert seen[case]["gathered"] == [0, 0, 0]
        assert seen[case]["hook is last"]
    assert seen["saved"] == seen["trained"]
    assert seen["swift"] == (["swift"] if find_spec("swift") else ["__main__"])
    report = seen["report"]
    assert report["zero3_delegating_wrapper"] == report["zero3_forward_module_stack"] == "applied"
    assert [patch_id for patch_id, outcome in report.items() if outcome in TROUBLE] == []
