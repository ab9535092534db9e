"""The process from which the sweep's ranks are forked."""

from __future__ import annotations

import subprocess
from pathlib import Path

from matrix.preload import Preloaded


def test_what_the_script_prints_is_not_taken_for_its_answer(tmp_path: Path) -> None:
    """DeepSpeed 0.17 and earlier log to standard output while they are imported."""
    (script := tmp_path / "script.py").write_text("print('[INFO] Setting ds_accelerator', flush=True)\n")
    (tmp_path / "rank.py").write_text("def main(word):\n    print(word)\n    return 0\n")
    with Preloaded("cpu", script, environment={"PYTHONPATH": str(tmp_path)}) as preloaded:
        done = subprocess.run(
            [*preloaded.command("rank"), "heard"],
            env={"PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
        )
    assert (done.returncode, done.stdout) == (0, "heard\n"), done.stderr
