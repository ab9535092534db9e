"""What two runs of a job say of the patches that lie between them, given what plain PyTorch computes."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Any

import numpy as np  # type: ignore[import-not-found,unused-ignore]

from matrix.bystanders.trials import Seen
from matrix.proofs import without_paths

_BOUNDS = {"fp32": 1e-3, "bf16": 0.1, "fp16": 0.1}  # of the way that the parameters have moved
_FLOORS = {"fp32": 5e-6, "bf16": 5e-2, "fp16": 5e-2}  # below, one is as good as the other
_WORSE = 1.3
_WHOLE = float("inf")
_HANGS = "hangs"


class State(enum.Enum):
    SAME = "same"  # to the bit, with as many collectives
    ENDED = "ended"  # both in the same exception, after the same or what plain PyTorch computes
    RIGHT = "right"  # what plain PyTorch computes, where it was something else, or rounded otherwise; fewer collectives
    OTHER = "other"  # not what plain PyTorch computes, neither without nor with: no patch's bug
    WORSE = "worse"  # wrong, less exact, ended or without agreement among the ranks, where it was not without


@dataclass(frozen=True)
class Verdict:
    """why: in one sentence. before, after: how far off without and with, relative; inf for a job that ended."""

    state: State
    why: str
    before: float = 0.0
    after: float = 0.0
    collectives: int = 0
    syncs: int = 0
    peak: int = 0


def judge(precision: str, before: Seen, after: Seen, plain: Seen | None) -> Verdict:
    """Of `after`, a run with a patch, against `before`, the one without.

    plain: None where the scenario has no reference. The Verdict's last three are what `after` has more of, per job.
    """
    half = precision.partition(",")[0]
    more = _more(before, after)
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
        told = f"the same numbers with {more.get('collectives', 0):+d} collectives"
        if more.get("collectives", 0) > 0:
            return Verdict(State.WORSE, told, **more)
        distance, where = off(after, plain) if plain else (0.0, "")
        if distance > _BOUNDS[half]:
            return Verdict(State.OTHER, where, distance, distance, **more)
        if more.get("collectives", 0) < 0:
            return Verdict(State.RIGHT, told, distance, distance, **more)
        return Verdict(State.SAME, where, distance, distance, **more)
    if plain is None:
        if ends[0] and not ends[1]:
            return Verdict(State.RIGHT, f"goes on where it ended: {ends[0]}", _WHOLE, 0.0, **more)
        if not any(ends) and _apart(before, after) <= _FLOORS[half]:
            return Verdict(State.RIGHT, f"rounded otherwise from {difference} on", **more)
        return Verdict(State.WORSE, ends[1] or f"not the same: {difference}", 0.0, _WHOLE, **more)
    alike = ends[0] == ends[1]
    (off_before, where_before), (off_after, where_after) = (
        (_WHOLE, ends[i]) if ends[i] and not alike else off(seen, plain) for i, seen in enumerate((before, after))
    )
    bound, floor = _BOUNDS[half], _FLOORS[half]
    numbers: dict[str, Any] = {"before": off_before, "after": off_after, **more}
    if off_after <= bound and (off_after <= floor or off_after <= _WORSE * off_before):
        if ends[1]:
            return Verdict(State.ENDED, ends[1], **more)
        return Verdict(State.RIGHT, where_before or f"rounded otherwise from {difference} on", **numbers)
    worse = off_after > _WORSE * off_before or (off_after == _WHOLE > off_before) or ends[1] == _HANGS != ends[0]
    return Verdict(State.WORSE if worse else State.OTHER, where_after, **numbers)


def ending(seen: Seen) -> str:
    """How the job ended before its end, "" where it did not."""
    told = [rank["ended"] for rank in seen.ranks if rank and rank["ended"]]
    if told:
        return without_paths(told[0])  # each run has its own directory
    if seen.late:
        return _HANGS
    return "" if all(seen.ranks) else "a rank was killed"


def first_difference(one: Seen, other: Seen) -> str:
    """The label of the first note that is not the same, to the bit, on some rank; "" where all are."""
    for rank, (left, right) in enumerate(zip(one.ranks, other.ranks)):
        if left is None or right is None:
            continue
        for mine, yours in zip(left["notes"], right["notes"]):
            if mine[0] != yours[0] or not _same(mine[1], yours[1]):
                return f"{mine[0]}, rank {rank}"
        if len(left["notes"]) != len(right["notes"]):
            return f"number of notes, rank {rank}"
    return ""


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        return bool(left.shape == right.shape and left.tobytes() == right.tobytes())
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    return bool(type(left) is type(right) and left == right)


def _apart(one: Seen, other: Seen) -> float:
    """The largest relative distance of a note from the other's."""
    worst = 0.0
    for left, right in ((a["notes"], b["notes"]) for a, b in zip(one.ranks, other.ranks) if a and b):
        if [label for label, _ in left] != [label for label, _ in right]:
            return _WHOLE
        worst = max([worst, *(_distance(yours, mine) for (_, mine), (_, yours) in zip(left, right))])
    return worst


def off(seen: Seen, plain: Seen) -> tuple[float, str]:
    """The largest relative distance of a note from plain PyTorch's, and its label."""
    worst, where = 0.0, ""
    for rank, reference in zip(seen.ranks, plain.ranks):
        right = dict((reference or {"notes": []})["notes"])
        for label, value in (rank or {"notes": []})["notes"]:
            if label.startswith("[bits]") or label not in right:
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


def disagreeing(seen: Seen) -> str:
    """Where two ranks of a group do not make the same collectives in the same order; "" where all do."""
    ranks = [rank["collectives"] if rank else [] for rank in seen.ranks]
    if not all(seen.ranks):
        return ""
    for group in sorted({each[1] for made in ranks for each in made}):
        sequences = [[each for each in ranks[rank] if each[1] == group] for rank in group]
        for other, sequence in zip(group[1:], sequences[1:]):
            for number, (left, right) in enumerate(zip(sequences[0], sequence)):
                if left != right and left[0] != "barrier":
                    return f"number {number} of {group} is {left} on rank {group[0]}, {right} on rank {other}"
            if len(sequence) != len(sequences[0]) and not ending(seen):  # a rank that has ended makes no more
                return f"{len(sequences[0])} on rank {group[0]}, {len(sequence)} on rank {other} of {group}"
    return ""


def _more(before: Seen, after: Seen) -> dict[str, int]:
    """Collectives and waits of all ranks, and the peak memory of the worst, that `after` has more of; a job's."""
    if not (all(before.ranks) and all(after.ranks)):
        return {}
    pairs = [(left, right) for left, right in zip(before.ranks, after.ranks) if left and right]
    return {
        "collectives": sum(len(right["collectives"]) - len(left["collectives"]) for left, right in pairs),
        "syncs": sum(right["syncs"] - left["syncs"] for left, right in pairs),
        "peak": max(right["peak"] - left["peak"] for left, right in pairs),
    }
