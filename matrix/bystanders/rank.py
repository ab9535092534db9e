"""One rank of a job: runs the scenario and writes the results. `main` is called in a separate process."""

from __future__ import annotations

import json
import os
import pickle
import re
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import dsfix
from dsfix.lab import Lab
from dsfix.patch import CannotTell
from dsfix.versions import installed
from matrix.bystanders import scenario

_PORT = re.compile(r":\d+\b")  # in gloo's messages; different in each run


def main(name: str, setting: str, how: str, directory: str) -> int:
    """how: "plain" for PyTorch, else DeepSpeed. Returns 1 if the scenario raises an exception."""
    with Lab("cuda") as lab:
        result = _run(lab, name, json.loads(setting), how == "plain")
        path = Path(directory, f"{lab.rank}.pickle")
        path.with_suffix(".partial").write_bytes(pickle.dumps(result))
        os.replace(path.with_suffix(".partial"), path)
        return 1 if result["ended"] else 0


def _run(lab: Lab, name: str, setting: dict[str, str], plain: bool) -> dict[str, Any]:
    torch = lab.torch
    from matrix.bystanders.job import Job
    from matrix.bystanders.watch import Watch

    watch = Watch()
    watch.install()
    job = Job(lab, setting, plain)
    job._lab_unseen = watch.unseen
    torch.manual_seed(0)
    started, ended = time.process_time(), ""
    try:
        if plain:
            torch.distributed.init_process_group("gloo")
        else:
            with watch.unseen():
                assert lab.deepspeed
        scenario.load()[name].run(job)
    except CannotTell:
        raise
    except Exception as error:
        traceback.print_exc()
        ended = f"{type(error).__name__}: {_PORT.sub('', str(error).strip().partition(chr(10))[0])[:200]}"
    hits: Any = sys.modules.get("matrix.bystanders.hits")
    reports = dsfix.report()
    return {
        "notes": job.notes,
        "ended": ended,
        "collectives": watch.collectives,
        "syncs": watch.syncs,
        "peak": torch.cuda.max_memory_allocated(),
        "seconds": time.process_time() - started,
        "run": {each: sorted(numbers) for each, numbers in hits.run.items() if numbers} if hits else {},
        "statements": dict(hits.statements) if hits else {},
        "versions": {each: installed(each) for each in ("deepspeed", "torch", "numpy", "python")},
        "patches": {report.id: report.outcome.value for report in reports},
        "effects": [report.id for report in reports if report.reached == "took effect"],
    }
