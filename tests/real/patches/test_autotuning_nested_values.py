"""autotuning_nested_values beyond its reproduction: experiments without the bug start the script as before."""

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

PATCH_ID = "autotuning_nested_values"
PROGRAM = Path(__file__).parent / "programs" / "autotuned.py"

pytestmark = pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")


def run(directory: Path, **variables: str) -> dict[str, list[str]]:
    directory.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DSFIX_", "_DSFIX_"))}
    environment.update(OMP_NUM_THREADS="1", **variables)
    command = [sys.executable, str(PROGRAM), str(directory)]
    done = subprocess.run(command, env=environment, cwd=directory, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    seen: dict[str, list[str]] = json.loads((directory / "0.json").read_text(encoding="utf-8"))
    return seen


def test_experiments_without_the_bug_start_the_script_as_before(tmp_path: Path) -> None:
    fit = gate(catalogue()[PATCH_ID].patch.affects)
    if fit.fit is Fit.OUTSIDE:
        pytest.skip(fit.reason)
    seen = run(tmp_path / "with")
    assert seen == run(tmp_path / "without", DSFIX_SKIP=PATCH_ID)
    assert seen["at the top: appended"] == ["--batch", "4", "--accumulate", "2", "--lr", "0.1"]
    assert seen["none: appended"] == []
