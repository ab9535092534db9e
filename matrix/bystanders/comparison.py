"""The verdict on the patches in which two runs of a job differ, with plain PyTorch as reference."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Any

import numpy as np  # type: ignore[import-not-found,unused-ignore]

from matrix.bystanders.trials import JobResult
from matrix.proofs import without_paths

_BOUNDS = {"fp32": 1e-3, "bf16": 0.1, "fp16": 0.1}  # relative to how far the parameters have moved
_FLOORS = {"fp32": 5e-6, "bf16": 5e-2, "fp16": 5e-2}  # differences below are rounding
_WORSE = 1.3
_WHOLE = float("inf")
_HANGS = "hangs"


class State(str, enum.Enum):
    SAME = "same"  # bitwise identical, with as many collectives
    ENDED = "ended"  # both raise the same exception, after the same results or those of plain PyTorch
    RIGHT = "right"  # matches plain PyTorch where results differ; or the same with fewer collectives
    OTHER = "other"  # differs from plain PyTorch with and without the patches: a bug that no patch claims
    WORSE = "worse"  # wrong, less accurate, ended early or with ranks that disagree, where the other run was not

    __str__ = str.__str__


@dataclass(frozen=True)
class Verdict:
    """why: one sentence. before, after: relative error without and with the patches; inf for a job that ended early.

    collectives, syncs, peak: how many more collectives, host waits and bytes of peak memory the patched job has.
    """

    state: State
    why: str = ""
    before: float = 0.0
    after: float = 0.0
    collectives: int = 0
    syncs: int = 0
    peak: int = 0

    @property
    def worse(self) -> bool:
        return self.state == State.WORSE


def judge(precision: str, before: JobResult, after: JobResult, plain: JobResult | None) -> Verdict:
    """The verdict on `after`, a run with a patch, compared with `before`, the one without.

    plain: the reference; None if the scenario has none.
    """
    half = precision.partition(",")[0]
    more = _extra_costs(before, after)
    disagreement = disagreeing(after)
    if disagreement and not disagreeing(before):
        return Verdict(State.WORSE, f"the ranks do not make the same collectives: {disagreement}", **more)
    if plain is not None and ending(plain):
        return Verdict(State.OTHER, f"plain PyTorch did not get to the end: {ending(plain)}", **more)
    difference = first_difference(before, after)
    ends = ending(before), ending(after)
    if not difference and ends[0] == ends[1]:
        if ends[0]:
            return Verdict(State.ENDED, ends[0], **more)
        why = f"the same numbers with {more.get('collectives', 0):+d} collectives"
        if more.get("collectives", 0) > 0:
            return Verdict(State.WORSE, why, **more)
        distance, where = relative_error(after, plain) if plain else (0.0, "")
        if distance > _BOUNDS[half]:
            return Verdict(State.OTHER, where, distance, distance, **more)
        if more.get("collectives", 0) < 0:
            return Verdict(State.RIGHT, why, distance, distance, **more)
        return Verdict(State.SAME, where, distance, distance, **more)
    if plain is None:
        if ends[0] and not ends[1]:
            return Verdict(State.RIGHT, f"continues where it ended: {ends[0]}", _WHOLE, 0.0, **more)
        if not any(ends) and _largest_distance(before, after) <= _FLOORS[half]:
            return Verdict(State.RIGHT, f"rounded differently from {difference} on", **more)
        return Verdict(State.WORSE, ends[1] or f"not the same: {difference}", 0.0, _WHOLE, **more)
    alike = ends[0] == ends[1]
    (off_before, where_before), (off_after, where_after) = (
        (_WHOLE, ends[i]) if ends[i] and not alike else relative_error(seen, plain)
        for i, seen in enumerate((before, after))
    )
    bound, floor = _BOUNDS[half], _FLOORS[half]
    numbers: dict[str, Any] = {"before": off_before, "after": off_after, **more}
    if off_after <= bound and (off_after <= floor or off_after <= _WORSE * off_before):
        if ends[1]:
            return Verdict(State.ENDED, ends[1], **more)
        return Verdict(State.RIGHT, where_before or f"rounded differently from {difference} on", **numbers)
    is_worse = off_after > _WORSE * off_before or (off_after == _WHOLE > off_before) or ends[1] == _HANGS != ends[0]
    return Verdict(State.WORSE if is_worse else State.OTHER, where_after, **numbers)


def ending(seen: JobResult) -> str:
    """How the job ended early, "" if it did not."""
    endings = [rank["ended"] for rank in seen.ranks if rank and rank["ended"]]
    if endings:
        return without_paths(endings[0])  # each run has its own directory
    if seen.late:
        return _HANGS
    return "" if all(seen.ranks) else "a rank was killed"


def first_difference(one: JobResult, other: JobResult) -> str:
    """The label and rank of the first note that is not bitwise identical; "" if all are."""
    for rank, (left, right) in enumerate(zip(one.ranks, other.ranks)):
        if left is None or right is None:
            continue
        for mine, yours in zip(left["notes"], right["notes"]):
            if mine[0] != yours[0] or not same(mine[1], yours[1]):
                return f"{mine[0]}, rank {rank}"
        if len(left["notes"]) != len(right["notes"]):
            return f"number of notes, rank {rank}"
    return ""


def same(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        return bool(left.shape == right.shape and left.tobytes() == right.tobytes())
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    return bool(type(left) is type(right) and left == right)


def _largest_distance(one: JobResult, other: JobResult) -> float:
    """The largest relative distance between two corresponding notes."""
    worst = 0.0
    for left, right in ((a["notes"], b["notes"]) for a, b in zip(one.ranks, other.ranks) if a and b):
        if [label for label, _ in left] != [label for label, _ in right]:
            return _WHOLE
        worst = max([worst, *(_distance(yours, mine) for (_, mine), (_, yours) in zip(left, right))])
    return worst


def relative_error(seen: JobResult, plain: JobResult, bits: bool = False) -> tuple[float, str]:
    """The largest relative distance of a note from plain PyTorch's, and its label; bits: also of notes it lacks."""
    worst, where = 0.0, ""
    for rank, reference in zip(seen.ranks, plain.ranks):
        right = dict((reference or {"notes": []})["notes"])
        for label, value in (rank or {"notes": []})["notes"]:
            if (label.startswith("[bits]") and not bits) or label not in right:
                continue
            distance = _distance(value, right[label])
            if distance > worst:
                worst, where = distance, label
    return worst, where


def _distance(value: Any, right: Any) -> float:
    if isinstance(value, str) or value is None or isinstance(right, str) or right is None:
        return 0.0 if value == right else _WHOLE
    left, other = (np.asarray(each, dtype=np.float64) for each in (value, right))
    if left.shape != other.shape:
        return _WHOLE
    same_infinities = np.array_equal(np.isfinite(left), np.isfinite(other))
    if not same_infinities:
        return _WHOLE
    finite = np.isfinite(left)
    scale = float(np.linalg.norm(other[finite]))
    distance = float(np.linalg.norm(left[finite] - other[finite]))
    return distance / scale if scale else (_WHOLE if distance else 0.0)


def disagreeing(seen: JobResult) -> str:
    """Where two ranks of a group differ in their sequence of collectives; "" if none do."""
    ranks = [rank["collectives"] if rank else [] for rank in seen.ranks]
    if not all(seen.ranks):
        return ""
    for group in sorted({each[1] for made in ranks for each in made}):
        sequences = [[each for each in ranks[rank] if each[1] == group] for rank in group]
        for other, sequence in zip(group[1:], sequences[1:]):
            for number, (left, right) in enumerate(zip(sequences[0], sequence)):
                if left != right and left[0] != "barrier":
                    return f"number {number} of {group} is {left} on rank {group[0]}, {right} on rank {other}"
            if len(sequence) != len(sequences[0]) and not ending(seen):  # a rank that ended early makes fewer
                return f"{len(sequences[0])} on rank {group[0]}, {len(sequence)} on rank {other} of {group}"
    return ""


def _extra_costs(before: JobResult, after: JobResult) -> dict[str, int]:
    """How many more collectives and host waits (over all ranks) and bytes of peak memory (worst rank) `after` has."""
    if not (all(before.ranks) and all(after.ranks)):
        return {}
    pairs = [(left, right) for left, right in zip(before.ranks, after.ranks) if left and right]
    return {
        "collectives": sum(len(right["collectives"]) - len(left["collectives"]) for left, right in pairs),
        "syncs": sum(right["syncs"] - left["syncs"] for left, right in pairs),
        "peak": max(right["peak"] - left["peak"] for left, right in pairs),
    }
