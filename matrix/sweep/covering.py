"""A covering array of the space: rows in which every allowed combination of levels occurs.

It covers any two factors, and any three of the core, where most of DeepSpeed's known bugs need three.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from dsfix.cli.exits import Complaint
from matrix.sweep import space
from matrix.sweep.space import CONSTRAINTS, FACTORS, Row

#: The rows to run, as their levels that are not plain; `python -m matrix sweep cover` writes it.
PATH = Path(__file__).with_name("configs.json")

CORE = ("stage", "precision", "accumulation", "offload", "backwards")

Combination = frozenset[tuple[str, str]]


def make() -> list[dict[str, str]]:
    """The rows, starting with the plain one; deterministic."""
    import covertable  # type: ignore[import-not-found,import-untyped,unused-ignore]

    constraints = [
        {
            "operator": "fn",
            "requires": list(each.factors),
            "evaluate": lambda row, each=each: each.holds(*(row[name] for name in each.factors)),
        }
        for each in CONSTRAINTS
    ]
    rows = covertable.make(
        {name: list(levels) for name, levels in FACTORS.items()},
        constraints=constraints,
        presets=[space.plain()],
        sub_models=[{"fields": list(CORE), "strength": 3}],
    )
    found = [{name: row[name] for name in FACTORS} for row in rows]
    return [space.plain(), *(row for row in found if row != space.plain())]


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
