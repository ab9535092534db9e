"""What the folder runs: cells of the matrix, audits, and programs with a missing wait. Imports no torch."""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

from dsfix.audit.agreement import AuditVerdict
from dsfix.audit.draft import Options
from dsfix.audit.resolve import resolve
from dsfix.audit.trial import trial
from dsfix.catalogue.registry import Entry
from dsfix.lab import reproduction
from dsfix.lab.cuda.load import SCHEDULE
from dsfix.lab.isolation import isolated_environment
from dsfix.lab.ranks import launch
from dsfix.lab.reproduction import Sighting
from matrix import proofs
from matrix.gpu.machine import Machine
from matrix.gpu.run import install
from matrix.proofs import Cell, Run

LIMIT = 120.0  # seconds, for one job
_TAIL, _LONGEST = 8, 800  # lines, characters
_ADAM = {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}  # DeepSpeed's own would have to be compiled
_COMMON = {"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0, "optimizer": _ADAM}
_RANKS = 2  # of an audit
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "ZeRO 1, bf16": {
        **_COMMON,
        "gradient_accumulation_steps": 2,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 1},
    },
    "ZeRO 2, fp16, overlap_comm": {
        **_COMMON,
        "fp16": {"enabled": True},
        "zero_optimization": {"stage": 2, "overlap_comm": True},
    },
    "ZeRO 3": {**_COMMON, "gradient_accumulation_steps": 2, "zero_optimization": {"stage": 3, "overlap_comm": True}},
}
Result = dict[str, Any]  # state and why; for a cell also what is recorded


class Releases:
    """DeepSpeed's releases, each installed from the folder's wheels when it is first used. Thread-safe."""

    def __init__(self, wheels: Path, directory: Path) -> None:
        self._wheels, self._directory = wheels, directory
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def path(self, name: str) -> Path:
        """For PYTHONPATH. Raises OSError."""
        directory = self._directory / f"deepspeed-{name}"
        with self._locks[name]:
            if not directory.is_dir():
                trouble = install(directory, self._wheels / f"{directory.name}-py3-none-any.whl")
                if trouble:
                    raise OSError(trouble)
        return directory


def cell(machine: Machine, entry: Entry, releases: Releases, release: str) -> Result:
    """The reproduction on the release, without the patch and with it; state: as in the matrix."""
    path = releases.path(release)
    command = machine.command("dsfix.lab.reproduction", entry.patch.ranks)
    without, patched = (reproduction.run(entry.id, each, LIMIT, path, command) for each in (False, True))
    reported = patched if patched.versions else without
    if not reported.versions and "cannot-tell" in (without.outcome, patched.outcome):
        return {"state": "failed", "why": without.detail}
    judged = Cell(
        without=_run(without),
        patched=_run(patched),
        versions={"deepspeed": release, **{name: each for name, each in reported.versions.items() if each}},
        device=reported.device,
        preloaded=False,
        date=date.today().isoformat(),
    )
    state, why = proofs.judge(entry.patch, judged)
    return {"state": state.value, "why": why, "cell": asdict(judged)}


def _run(sighting: Sighting) -> Run:
    detail = proofs.without_paths(sighting.detail)[-_LONGEST:]
    return Run(sighting.outcome, sighting.patch, detail)


def audit(machine: Machine, config: Mapping[str, Any], releases: Releases, release: str) -> Result:
    """Two ranks with the config, with dsfix and without. state: "agrees", "differs" or "failed"."""
    path = releases.path(release)
    with tempfile.TemporaryDirectory(prefix="dsfix-gpu-") as directory:
        file = Path(directory, "ds_config.json")
        file.write_text(json.dumps(config), encoding="utf-8")
        plan = resolve(str(file), Options(ranks=_RANKS, device="cuda", phases=("resume",))).plan

    def command(module: str) -> Sequence[str]:
        return machine.command(module, _RANKS)

    patched, without = (trial(plan, patched=each, path=path, timeout=LIMIT, command=command) for each in (True, False))
    state = "failed" if patched.failed else "agrees" if patched.agrees else "differs"
    return {
        "state": state,
        "why": f"with dsfix {_in_short(patched)}; without, {_in_short(without)}",
        "differences": [asdict(difference) for difference in patched.differences],
        "device": patched.device,
    }


def _in_short(verdict: AuditVerdict) -> str:
    if verdict.failed:
        return proofs.without_paths(verdict.failed)[:_LONGEST]
    differences = [f"{difference.what} from step {difference.step}" for difference in verdict.differences]
    return f"{verdict.comparisons} comparisons, {', '.join(differences[:4]) or 'no difference'}"


def programs(machine: Machine, script: Path, releases: Releases, release: str) -> dict[str, Result]:
    """Name of a program -> whether its missing wait shows, and the one with the wait is right."""
    path = releases.path(release)
    with tempfile.TemporaryDirectory(prefix="dsfix-gpu-") as directory:
        streams = {SCHEDULE: "late"} if machine.emulated else {}
        environment = {**isolated_environment(Path(directory), path=path), **streams, "DSFIX_SEVERITY": "import"}
        [done] = launch([sys.executable, str(script)], 1, LIMIT, environment, directory)
    try:
        outputs = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        lines = ["timed out"] if done.timed_out else done.stderr.splitlines()[-_TAIL:]
        return {script.stem: {"state": "failed", "why": proofs.without_paths("\n".join(lines))[:_LONGEST]}}
    names = dict.fromkeys(output.rpartition(" ")[0] for output in outputs)
    return {name: _pair(outputs[f"{name} right"]["ok"], outputs[f"{name} wrong"]["ok"]) for name in names}


def _pair(right: bool, wrong: bool) -> Result:
    if not right:
        return {"state": "failed", "why": "the program with the wait computes something else"}
    if wrong:
        return {"state": "bug not shown", "why": "without the wait the result is right too"}
    return {"state": "bug shown", "why": "wrong without the wait, right with it"}
