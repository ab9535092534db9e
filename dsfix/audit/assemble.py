"""Merges the ranks' observations of a trial and compares them with plain PyTorch. Importing this imports torch."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from pathlib import Path

import torch

from dsfix.audit.agreement import AuditVerdict, Difference, RankObservations
from dsfix.audit.compare import Findings, compare
from dsfix.audit.pieces import Record, join
from dsfix.audit.plan import PHASES, Plan, Unsupported, complete


def read(directory: Path) -> list[RankObservations]:
    """Returns what the ranks wrote, in rank order; ranks that wrote nothing are missing."""
    paths = sorted(directory.glob("rank-*.pt"), key=lambda path: int(path.stem.partition("-")[2]))
    return [torch.load(path, weights_only=False) for path in paths]


def record(jobs: Mapping[str, list[RankObservations]]) -> Record:
    """Merges what the ranks of "training" and of the loading phases saw, up to the last step that all of them saw."""
    merged = Record()
    for job, seen in jobs.items():
        for each in seen:
            merged.not_compared.update(each.not_compared)
            merged.exports.update(each.exports)
            for phase, error in each.errors.items():
                merged.errors.setdefault(phase, error)
        start = join([each.start for each in seen]) if all(each.start is not None for each in seen) else None
        steps = [join(parts) for parts in zip(*(each.steps for each in seen))]
        if job == "training":
            merged.start, merged.steps = start, steps
        elif start is not None:
            merged.loaded[job], merged.resumed[job] = start, steps
    return merged


def verdict_of(
    plan: Plan, seen: list[RankObservations], resumed: Mapping[str, list[RankObservations]] | None = None
) -> AuditVerdict:
    """Returns the verdict on one trial. seen: of the training's ranks; resumed: phase -> of the ranks that loaded."""
    joined = record({"training": seen, **(resumed or {})})
    comparison, failed = Findings(), next((each.failed for each in seen if each.failed), "")
    try:
        if not failed:
            comparison = compare(complete(plan, seen[0].versions["deepspeed"]), joined)
    except Unsupported as reason:
        failed = str(reason)
    for phase, error in joined.errors.items():
        step = len(joined.steps) if phase == "training" else plan.half + len(joined.resumed.get(phase, ()))
        comparison.differences.append(Difference(phase, "error", step, (), 0, 0, 0, 0, _last(error)))
    ranks = [*seen, *(each for job in (resumed or {}).values() for each in job)]
    return AuditVerdict(
        differences=tuple(comparison.differences),
        comparisons=comparison.comparisons,
        not_compared=comparison.not_compared,
        patches=seen[0].patches,
        versions=seen[0].versions,
        device=seen[0].device,
        failed=failed,
        errors=tuple(dict.fromkeys(error for rank in ranks for error in rank.errors.values())),
    )


def _last(error: str) -> str:
    """Returns the first line of a traceback's exception and where it was raised."""
    places = re.findall(r'^  File "(.*)", line (\d+), in (.*)$', error, re.MULTILINE)
    if not places:
        return error.strip().splitlines()[-1]
    message = re.findall(r"^\S.*$", error.rpartition("Traceback (most recent call last):")[2], re.MULTILINE)
    file, line, function = places[-1]
    return f"{message[0]} ({Path(file).name}:{line} in {function})"


def main(plan_file: str, directory: str) -> int:
    plan = Plan.load(Path(plan_file).read_text(encoding="utf-8"))
    jobs = {phase: read(path) for phase in PHASES if (path := Path(directory, phase)).is_dir()}
    resumed = {phase: seen for phase, seen in jobs.items() if seen}
    verdict = verdict_of(plan, read(Path(directory, "training")), resumed)
    Path(directory, "verdict").write_bytes(pickle.dumps(verdict))
    return 0
