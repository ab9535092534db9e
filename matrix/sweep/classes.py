"""Reduces disagreements to classes: the fewest levels that show a disagreement, and the patches that fix it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence

from dsfix.audit.search import minimal, pools
from matrix.sweep import space
from matrix.sweep.records import Class, Found, Run
from matrix.sweep.space import Row

#: Runs a row in a variant, with some patches disabled.
Try = Callable[[Row, str, Sequence[str]], Run]

_VARIABLE = re.compile(r"0x[0-9a-f]+|\d+|'[^']*'")
_LENGTH = 60


def kind(found: Found) -> tuple[str, str, str]:
    """What disagreements with one cause have in common: phase, what, and the start of an error's text."""
    text = _VARIABLE.sub("", found.detail)[:_LENGTH] if found.what in ("error", "failed") else ""
    return found.phase, found.what, text


def findings(run: Run) -> tuple[Found, ...]:
    """The run's disagreements in training, else those in the other phases.

    Disagreements in the checkpoints of a wrong training are consequences, not separate findings.
    """
    if run.failed:
        return (Found("training", "failed", 0, (), 0.0, 0.0, 0.0, 0.0, run.failed),)
    training = tuple(each for each in run.differences if each.phase == "training")
    return training or run.differences


def shows(run: Run, wanted: Found) -> bool:
    """Whether the run has a finding of that kind."""
    return any(kind(each) == kind(wanted) for each in findings(run))


def holds(found: Class, variant: str, row: Row, wanted: Found) -> bool:
    """Whether a class includes this finding of this row."""
    same = any(kind(each) == kind(wanted) for each in found.shown)
    return same and found.variant in (variant, "with") and found.minimal.items() <= row.items()


def but(found: Class, others: Sequence[Class]) -> Class:
    """The class without findings that the others include."""
    row = space.complete(found.minimal)
    shown = [each for each in found.shown if not any(holds(one, found.variant, row, each) for one in others)]
    return dataclasses.replace(found, shown=tuple(shown))


def alike(known: Iterable[Class], wanted: Found) -> list[Class]:
    """The classes with a finding of that kind, smallest first."""
    found = [each for each in known if any(kind(one) == kind(wanted) for one in each.shown)]
    return sorted(found, key=lambda each: len(each.minimal))


def reduce(row: Row, variant: str, shown: Found, run: Try, known: Iterable[Class] = ()) -> Class:
    """Remove levels from `row`, which shows `shown`, until none can be removed.

    known: classes, also of other releases, whose levels are tried first.
    """
    left = dict(row)
    for each in alike(known, shown):
        candidate = space.complete(each.minimal)
        if each.minimal.items() < row.items() and shows(run(candidate, variant, ()), shown):
            left = candidate
            break
    shrunk = True
    while shrunk:
        shrunk = False
        for name in reversed(space.differing(left)):  # an option before what it depends on
            candidate = {**left, name: space.plain()[name]}
            if next(space.broken(candidate), None) is None and shows(run(candidate, variant, ()), shown):
                left, shrunk = candidate, True
    return Class(variant, space.differing(left), findings(run(left, variant, ())))


def _within(one: Class, other: Class) -> bool:
    return one.minimal.items() <= other.minimal.items()


def with_fixes(found: Class, applied: Sequence[str], run: Try, known: Iterable[Class] = ()) -> Class:
    """A class of the variant "without" with the patches needed to fix it; none if dsfix does not fix it.

    known: classes, also of other releases, whose patches are tried first.
    """
    row = space.complete(found.minimal)
    near = [each for each in alike(known, found.shown[0]) if _within(each, found) or _within(found, each)]
    suspects = {patch for each in near for patch in each.patches}

    def enough(kept: Sequence[str]) -> bool:
        seen = run(row, "with", [patch for patch in applied if patch not in kept])
        return not any(shows(seen, each) for each in found.shown)

    if not enough(applied):
        return found
    imports, (*likely, everything) = pools(applied, sorted(suspects))
    pool = next((few for few in likely if enough([*imports, *few])), everything)
    return dataclasses.replace(found, patches=tuple(minimal(imports, pool, enough, fresh=False)))
