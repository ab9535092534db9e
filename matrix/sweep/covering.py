"""A covering array of the space: rows in which every allowed combination of levels occurs.

It covers any two factors, and any three of the core, where most of DeepSpeed's known bugs need three. Schedules of the
emulated device, which take longer, are covered with each factor that concerns streams.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from dsfix.cli.exits import Complaint
from matrix.sweep import space
from matrix.sweep.space import CONSTRAINTS, FACTORS, Row

#: The rows to run, as their levels that are not plain; `python -m matrix sweep cover` writes it.
PATH = Path(__file__).with_name("configs.json")

CORE = ("stage", "precision", "accumulation", "offload", "backwards")

#: Each is in a pair with each level of the schedule; the others are plain under a schedule.
STREAMS = (
    *("pinned", "stage", "precision", "accumulation", "ranks", "clipping", "offload", "buckets", "overlap_comm"),
    *("contiguous_gradients", "reduce_scatter", "round_robin_gradients", "use_multi_rank_bucket_allreduce"),
    *("sub_groups", "partitioning", "zero_init", "trained", "checkpointing"),
)
_OVERLAP = {"ranks": "2", "overlap_comm": "true", "buckets": "small"}
#: Rows with a schedule in which the most is under way at a time.
BUSY: tuple[Row, ...] = (
    {"schedule": "late", "stage": "1", "precision": "bf16", **_OVERLAP},
    {"schedule": "late", "stage": "2", "accumulation": "2", **_OVERLAP},
    {"schedule": "late", "stage": "3", "partitioning": "all", "sub_groups": "several", **_OVERLAP},
    {"schedule": "late", "stage": "3", "offload": "optimizer", "pinned": "yes", "clipping": "on", **_OVERLAP},
    {"schedule": "ahead", "stage": "2", **_OVERLAP},
    {"schedule": "ahead", "stage": "3", "partitioning": "all", "precision": "bf16", **_OVERLAP},
    {"schedule": "random:1", "stage": "2", "offload": "optimizer", "pinned": "yes", "accumulation": "2", **_OVERLAP},
)
#: Plain in the rows without a schedule.
_SCHEDULED = ("schedule", "pinned")
#: Covered without a schedule, any two of them.
WITHOUT = tuple(name for name in FACTORS if name not in _SCHEDULED)

Combination = frozenset[tuple[str, str]]


def make() -> list[dict[str, str]]:
    """The rows, starting with the plain one and those without a schedule; deterministic."""
    found = _covered(WITHOUT, [{"fields": list(CORE), "strength": 3}], presets=[space.plain()])
    pairs = [{"fields": ["schedule", name], "strength": 2} for name in STREAMS]
    busy = [space.complete(row) for row in BUSY]
    scheduled = _covered(("schedule", *STREAMS), pairs, strength=1, presets=busy, left_out=[("schedule", "none")])
    return [space.plain(), *(row for row in found if row != space.plain()), *scheduled]


def _covered(
    names: Collection[str],
    more: Sequence[dict[str, Any]],
    strength: int = 2,
    presets: Sequence[Row] = (),
    left_out: Collection[tuple[str, str]] = (),
) -> list[dict[str, str]]:
    """Rows that cover these factors, any `strength` of them, and `more`; plain in all others."""
    import covertable  # type: ignore[import-not-found,import-untyped,unused-ignore]

    constraints = [
        {
            "operator": "fn",
            "requires": list(each.factors),
            "evaluate": lambda row, each=each: each.holds(*(row[name] for name in each.factors)),
        }
        for each in CONSTRAINTS
        if set(each.factors) <= set(names)
    ]
    rows = covertable.make(
        {name: [level for level in FACTORS[name] if (name, level) not in left_out] for name in names},
        constraints=constraints,
        presets=[{name: row[name] for name in names} for row in presets],
        sub_models=list(more),
        strength=strength,
    )
    return [space.complete(row) for row in rows]


def load(path: Path = PATH) -> list[dict[str, str]]:
    """The rows of the file. Raises Complaint if it does not fit the space."""
    try:
        return [space.complete(levels) for levels in json.loads(path.read_text(encoding="utf-8"))]
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise Complaint(f"{path.name}: {error}: `python -m matrix sweep cover` writes it") from None


def save(rows: Sequence[Row], path: Path = PATH) -> None:
    """Write the rows, one per line."""
    lines = ",\n".join(f"  {json.dumps(space.differing(row))}" for row in rows)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def combinations(row: Row, strength: int = 2, factors: Collection[str] = FACTORS) -> Iterator[Combination]:
    """The combinations of `strength` levels of a row."""
    chosen = [(name, level) for name, level in row.items() if name in factors]
    return (frozenset(each) for each in itertools.combinations(chosen, strength))


def allowed(strength: int = 2, factors: Collection[str] = FACTORS) -> set[Combination]:
    """Every combination of `strength` levels that occurs in a row satisfying all constraints."""
    found: set[Combination] = set()
    for names in itertools.combinations(factors, strength):
        for levels in itertools.product(*(FACTORS[name] for name in names)):
            part = dict(zip(names, levels))
            if frozenset(part.items()) not in found and (row := _completed(part)):
                found.update(combinations(row, strength, factors))
    return found


def _completed(part: dict[str, str]) -> dict[str, str] | None:
    """A row with these levels that satisfies all constraints, found by backtracking; None if there is none."""
    if next(space.broken(part), None):
        return None
    name = next((name for name in FACTORS if name not in part), None)
    if name is None:
        return part
    for level in FACTORS[name]:
        if row := _completed({**part, name: level}):
            return row
    return None
