"""Which patches cure what an audit finds without dsfix, and which change of the config avoids what is left with it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Callable, Protocol, TypeVar

from .agreement import Verdict
from .alternatives import Change, alternatives, changed
from .plan import Plan
from .relevance import pools

_Item = TypeVar("_Item")


class Trial(Protocol):
    """dsfix.audit.trial.trial, as far as it is called for an audit of the installed DeepSpeed."""

    def __call__(
        self, plan: Plan, *, skip: Sequence[str] = ..., patched: bool = ..., timeout: float = ...
    ) -> Verdict: ...


@dataclass(frozen=True)
class Cure:
    """A patch that is needed. seen: what there is with the other cures and without this one; None: not tried."""

    patch: str
    seen: Verdict | None = None


@dataclass
class Found:
    """What was found until now: it grows while the search goes on, so that an interrupted one can be told.

    cures: the patches that it takes, each of them needed. among: where they could not be told apart in time, those of
    which some are needed. changes: each is enough alone, the least first. together: where none is, those that are
    enough all at once. tried: single changes that were tried, out of `candidates`. trials: that were made in all.
    complete: neither the time limit nor the user has ended the search.
    """

    cures: list[Cure] = field(default_factory=list)
    among: tuple[str, ...] = ()
    changes: list[Change] = field(default_factory=list)
    together: tuple[Change, ...] = ()
    tried: int = 0
    candidates: int = 0
    trials: int = 0
    complete: bool = False


class _OutOfTime(Exception):
    """The limit of the search."""


@dataclass
class Search:
    """A search for one plan. with_dsfix: the verdict that there is with all patches that apply.

    deadline: of time.monotonic(). timeout: of one trial, seconds. watched: is called around each trial, first with what
    is tried, then with None and the verdict.
    """

    trial: Trial
    plan: Plan
    with_dsfix: Verdict
    deadline: float
    timeout: float = 120.0
    watched: Callable[[str | None, Verdict | None], None] = lambda what, verdict: None
    found: Found = field(default_factory=Found)

    def run(self, without: Verdict, suspects: Iterable[str], sizes: Mapping[str, int]) -> None:
        """Fills `found`. without: the verdict without dsfix. suspects, sizes: as Resolved has them."""
        try:
            if not self._as_good(without):
                self._cures(without, suspects)
            if self.with_dsfix.differences:
                self._changes(sizes)
            self.found.complete = True
        except _OutOfTime:
            pass

    def _try(self, what: str, plan: Plan, skip: Iterable[str] = ()) -> Verdict:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise _OutOfTime
        self.watched(what, None)
        verdict = self.trial(plan, skip=sorted(skip), timeout=min(self.timeout, left))
        self.found.trials += 1
        self.watched(None, verdict)
        if verdict.failed and time.monotonic() >= self.deadline:  # it was cut short, and says nothing
            raise _OutOfTime
        return verdict

    def _as_good(self, verdict: Verdict) -> bool:
        """Whether nothing differs but what differs with all patches, too."""
        return not verdict.failed and _kinds(verdict) <= _kinds(self.with_dsfix)

    def _cures(self, without: Verdict, suspects: Iterable[str]) -> None:
        applied = self.with_dsfix.patches
        # a patch's id says of which phase it is: universal_checkpoint_…, zero_to_fp32_…
        phases = {each.phase for each in without.differences}
        named = (
            [patch for patch in applied if any(phase in patch for phase in phases)] if "training" not in phases else []
        )
        imports, choices = pools(self.plan, applied, [*suspects, *named])
        if not without.failed and all(each.what != "error" for each in without.differences):
            imports = []  # it was imported without
        self.found.among = applied

        def enough(plan: Plan, kept: Sequence[str]) -> bool:
            good = self._as_good(self._try(_with(kept, applied), plan, set(applied) - set(kept)))
            if good and len(kept) < len(self.found.among):
                self.found.among = tuple(kept)
            return good

        def least(plan: Plan, base: Sequence[str], items: Sequence[str], fresh: bool) -> list[str]:
            return minimal(base, items, lambda kept: enough(plan, kept), fresh)

        small = _narrowed(self.plan, without)
        needed: list[str] = []
        if not imports or not enough(small, imports):
            *likely, pool = choices
            pool = next((few for few in likely if enough(small, [*imports, *few])), pool)
            needed = least(small, imports, pool, fresh=False)
        needed += least(small, needed, imports, fresh=bool(needed)) if imports else []
        if small != self.plan and len(needed) < len(applied):
            needed += least(self.plan, needed, [patch for patch in applied if patch not in needed], fresh=True)
        self.found.among = ()
        self.found.cures = [Cure(patch, without if len(needed) == 1 else None) for patch in needed]
        for number, patch in enumerate(needed if len(needed) > 1 else ()):
            others = [each for each in needed if each != patch]
            seen = self._try(_with(others, applied), small, set(applied) - set(others))
            self.found.cures[number] = Cure(patch, seen)

    def _changes(self, sizes: Mapping[str, int]) -> None:
        small = _narrowed(self.plan, self.with_dsfix)
        candidates = alternatives(small, sizes)
        self.found.candidates = len(candidates)

        def enough(changes: Sequence[Change]) -> bool:
            what = "; ".join(change.what for change in changes)
            plans = [small, self.plan] if small != self.plan else [self.plan]
            return all(self._try(what, changed(plan, changes)).agrees for plan in plans)

        for change in candidates:
            # a stage still lower is no news
            if not any(change.config.keys() == each.config.keys() != set() for each in self.found.changes) and enough(
                [change]
            ):
                self.found.changes.append(change)
            self.found.tried += 1
        if not self.found.changes and len(candidates) > 1 and enough(candidates):
            self.found.together = tuple(minimal([], candidates, enough, fresh=False))


def _with(kept: Sequence[str], applied: Sequence[str]) -> str:
    if len(kept) <= 1:
        return f"with {kept[0]} only" if kept else "without dsfix"
    return f"with {len(kept)} of {len(applied)} patches"


def _kinds(verdict: Verdict) -> set[tuple[str, str]]:
    return {(difference.phase, difference.what) for difference in verdict.differences}


def _narrowed(plan: Plan, verdict: Verdict) -> Plan:
    """The plan with no more phases than show the verdict's differences: none where the training itself differs."""
    if verdict.failed:
        return plan
    phases = tuple(phase for phase in plan.phases if any(each.phase == phase for each in verdict.differences))
    trained = all(each.phase in phases for each in verdict.differences)
    return replace(plan, phases=phases if trained else ())


def minimal(
    base: Sequence[_Item], items: Sequence[_Item], enough: Callable[[Sequence[_Item]], bool], fresh: bool
) -> list[_Item]:
    """The least of `items` that is enough beside `base`, where all of them are: each of it is needed.

    Junker, QuickXplain (AAAI 2004): about 2 k log(n / k) tests for k of n. fresh: `base` alone was not tested yet.
    """
    if fresh and enough(base):
        return []
    if len(items) <= 1:
        return list(items)
    half = len(items) // 2
    first, second = items[:half], items[half:]
    of_second = minimal([*base, *first], second, enough, fresh=True)
    of_first = minimal([*base, *of_second], first, enough, fresh=bool(of_second))
    return [*of_first, *of_second]
