"""Gradients that a script discards stay discarded, where patches add what DeepSpeed loses; in doubt with a warning."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from dsfix.catalogue.registry import catalogue
from dsfix.versions import Fit, gate

PROGRAM = Path(__file__).parent / "programs" / "discarded.py"

pytestmark = pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")


@pytest.mark.parametrize(
    ("patch_id", "stage"), [("zero3_two_losses_one_forward", 3), ("zero2_accumulation_drops_microbatches", 2)]
)
def test_what_the_script_discards_is_not_trained(tmp_path: Path, patch_id: str, stage: int) -> None:
    fit = gate(catalogue()[patch_id].patch.affects)
    if fit.fit is Fit.OUTSIDE:
        pytest.skip(fit.reason)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DSFIX_", "_DSFIX_"))}
    environment.update({name: os.environ[name] for name in ("DSFIX_CACHE",) if name in os.environ})
    environment.update(OMP_NUM_THREADS="1")
    command = [sys.executable, str(PROGRAM), str(tmp_path), str(stage)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    seen: dict[str, list[float]] = json.loads((tmp_path / "0.json").read_text(encoding="utf-8"))
    for doubtful in ("perhaps", "looked_at"):
        from_plain, from_last = seen.pop(doubtful)
        assert from_last < 1e-5 < 1e-2 < from_plain, doubtful  # as without the patch
    assert done.stderr.count(f"{patch_id}: between two backward passes") == 1
    assert {name: difference for name, (difference, _) in seen.items() if not difference < 1e-5} == {}
    assert [name for name, (_, from_last) in seen.items() if from_last > 1e-2] == ["of_the_head", "nothing", "clipped"]
