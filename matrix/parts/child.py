"""Runs some parts of one area in this process, on the DeepSpeed that it imports, and writes what each shows."""

from __future__ import annotations

import json
from pathlib import Path

import dsfix
from dsfix.lab.ranks import rank
from dsfix.lab.session import Lab
from matrix.parts.part import load


def main(device: str, names: str, directory: str, shrink: str) -> int:
    chosen = json.loads(names)
    with Lab(device) as lab, (Path(directory) / f"{rank()}.jsonl").open("a", encoding="utf-8") as file:
        _ = lab.deepspeed
        from matrix.parts.drawing import run

        parts = load(*{name.partition("/")[0] for name in chosen})
        for name in chosen:
            outcome, count, seen = run(parts[name], lab, bool(shrink))
            applied = [each for each in dsfix.report() if each.outcome is dsfix.Outcome.APPLIED]
            told = {"name": name, "outcome": outcome, "examples": count, "seen": seen}
            told["applied"] = [each.id for each in applied]
            told["reached"] = [each.id for each in applied if each.reached in ("took effect", "ran")]
            print(json.dumps(told), file=file, flush=True)
    return 0
