"""Once: rewrites records/*.json with fingerprints of whole files as records/*.txt with those of functions."""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import importlib
import inspect
import json
from collections import Counter
from typing import Any

from matrix.bystanders import records, scenario, space
from matrix.bystanders.records import Found, Record, Run


class _Bare(ast.NodeTransformer):
    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            return None
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            del node.body[0]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "scenario":
            del node.args[0]
            node.keywords = [each for each in node.keywords if each.arg != "works_around"]
        return self.generic_visit(node)


@functools.cache
def _of_file(name: str) -> str:
    tree = _Bare().visit(ast.parse(inspect.getsource(importlib.import_module(name))))
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:16]


def main() -> None:
    known = {job.id: job for job in space.jobs()}
    for path in sorted(records.DIRECTORY.glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        jobs = {}
        for name, each in data.pop("jobs").items():
            one = {patch_id: Found(**found) for patch_id, found in each.get("one", {}).items()}
            jobs[name] = Run(each["script"], Found(**each["found"]), each.get("run", {}), one)
        record = Record(**data, jobs=jobs)
        before: Counter[str] = Counter()
        for name, run in jobs.items():
            current = name in known and run.script == _of_file(known[name].scenario.run.__module__)
            before["current" if current else "stale"] += 1
            if current:
                run.script = known[name].scenario.fingerprint()
        records.save(record)
        again = records.load(record.release)
        assert dataclasses.asdict(again) == dataclasses.asdict(record), record.release
        after = Counter("current" if n in known and again.current(known[n]) else "stale" for n in again.jobs)
        single = sum(len(run.one) for run in again.jobs.values())
        missing = [job.id for job in space.jobs_of(record.release) if again.current(job) is None]
        print(record.release, dict(before), dict(after), f"{single} single verdicts, {len(missing)} missing")
        size = (records.DIRECTORY / f"{record.release}.txt").stat().st_size
        print(f"   {path.stat().st_size} bytes, now {size}")
        path.unlink()
    assert scenario.load()


if __name__ == "__main__":
    main()
