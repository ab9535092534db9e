"""The process from which the sweep's ranks are forked."""

from __future__ import annotations

import subprocess
from pathlib import Path

from matrix.preload import Preloaded


def test_output_of_a_script_is_not_mistaken_for_the_answer(tmp_path: Path) -> None:
    """DeepSpeed through 0.17 logs to standard output on import."""
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
