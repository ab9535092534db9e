"""Which patches fix the differences that an audit finds without dsfix."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Callable, TypeVar

from ..catalogue import registry
from ..patch import Severity
from .agreement import AuditVerdict
from .plan import Plan

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Fix:
    """A patch that is needed. seen: the verdict with the other fixes and without this one; None: not tried."""

    patch: str
    seen: AuditVerdict | None = None


@dataclass
class SearchResult:
    """What was found so far; it grows during the search, so that an interrupted search can be reported.

    fixes: the patches that are needed, each of them necessary. candidates: if time ran out, patches that include
    the needed ones. trials: their number. complete: the search ended neither by the time limit nor by the user.
    """

    fixes: list[Fix] = field(default_factory=list)
    candidates: tuple[str, ...] = ()
    trials: int = 0
    complete: bool = False


class _OutOfTime(Exception):
    """The time limit of the search."""


@dataclass
class Search:
    """A search for one plan. trial: as in trial.py. with_dsfix: the verdict with all patches that apply.

    deadline: of time.monotonic(). timeout: of one trial, in seconds. watched: called before each trial with what is
    tried, and after it with None and the verdict.
    """

    trial: Callable[..., AuditVerdict]
    plan: Plan
    with_dsfix: AuditVerdict
    deadline: float
    timeout: float = 120.0
    watched: Callable[[str | None, AuditVerdict | None], None] = lambda what, verdict: None
    found: SearchResult = field(default_factory=SearchResult)
    _verdicts: dict[tuple[str, frozenset[str]], list[tuple[set[str], AuditVerdict]]] = field(default_factory=dict)

    def run(self, without: AuditVerdict, suspects: Iterable[str]) -> None:
        """Fills `found`. without: the verdict without dsfix. suspects: as in ResolvedConfig."""
        try:
            if not self._as_good(without):
                self._find_fixes(without, suspects)
            self.found.complete = True
        except _OutOfTime:
            pass

    def _try(self, what: str, plan: Plan, skip: Iterable[str] = ()) -> AuditVerdict:
        """Returns the verdict on a plan without some patches; no trial is made twice, nor with fewer phases."""
        key = replace(plan, phases=()).dump(), frozenset(skip)
        known = self._verdicts.setdefault(key, [])
        for phases, verdict in known:
            if phases == {*plan.phases}:
                return verdict
            if phases > {*plan.phases}:
                return _within(verdict, plan)
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise _OutOfTime
        self.watched(what, None)
        verdict = self.trial(plan, skip=sorted(skip), timeout=min(self.timeout, left))
        self.found.trials += 1
        self.watched(None, verdict)
        if verdict.failed and time.monotonic() >= self.deadline:  # it was cut short: no result
            raise _OutOfTime
        known.append(({*plan.phases}, verdict))
        return verdict

    def _try_only(self, plan: Plan, kept: Sequence[str]) -> AuditVerdict:
        applied = self.with_dsfix.patches
        verdict = self._try(_with(kept, applied), plan, set(applied) - set(kept))
        if self._as_good(verdict) and len(kept) < len(self.found.candidates):
            self.found.candidates = tuple(kept)
        return verdict

    def _as_good(self, verdict: AuditVerdict) -> bool:
        """Whether nothing differs except what also differs with all patches."""
        return not verdict.failed and _kinds(verdict) <= _kinds(self.with_dsfix)

    def _find_fixes(self, without: AuditVerdict, suspects: Iterable[str]) -> None:
        self.found.candidates = applied = self.with_dsfix.patches
        small = _narrowed(self.plan, without)
        named, left = self._follow_errors(small, without)
        if named and self._as_good(left):
            needed = minimal([], named, lambda kept: self._enough(small, kept), fresh=False)
        else:
            needed = self._needed(small, left, named, suspects)
        plans = dict.fromkeys(needed, small)
        while len(plans) < len(applied):  # a later phase may differ too
            self.found.candidates = applied
            left = self._try_only(self.plan, list(plans))
            if self._as_good(left):
                break
            plan, choices = _narrowed(self.plan, left), self._pools(left, suspects)[1]
            more = self._besides(plan, list(plans), choices)
            if not more:  # it differs only with all phases
                plan, more = self.plan, self._besides(self.plan, list(plans), choices[-1:])
            plans.update(dict.fromkeys(more, plan))
        self.found.candidates = ()
        self.found.fixes = [Fix(patch, without if len(plans) == 1 else None) for patch in plans]
        for number, (patch, plan) in enumerate(plans.items() if len(plans) > 1 else ()):
            others = [each for each in plans if each != patch]
            self.found.fixes[number] = Fix(patch, self._try_only(plan, others))

    def _enough(self, plan: Plan, kept: Sequence[str]) -> bool:
        return self._as_good(self._try_only(plan, kept))

    def _follow_errors(self, small: Plan, verdict: AuditVerdict) -> tuple[list[str], AuditVerdict]:
        """Returns the patches whose symptoms the errors match, one error after the other, and the verdict with them.

        Each training has all phases: a patch that removes the error counts as needed.
        """
        named: list[str] = []
        while True:
            matching = _named_by((*verdict.errors, verdict.failed), self.with_dsfix.patches)
            if not set(matching) - set(named):
                return named, verdict
            named += [patch for patch in matching if patch not in named]
            self._try_only(self.plan, named)
            verdict = self._try_only(small, named)

    def _needed(self, small: Plan, left: AuditVerdict, named: Sequence[str], suspects: Iterable[str]) -> list[str]:
        """Returns the needed patches. left: the verdict with the patches `named`."""
        imports, choices = self._pools(left, suspects)
        fails = left.failed or any(difference.what == "error" for difference in left.differences)
        base = list(dict.fromkeys([*named, *imports])) if fails else list(named)
        needed: list[str] = []
        if not base or not self._enough(small, base):
            needed = self._besides(small, base, choices)
        if not base:
            return needed
        return needed + minimal(needed, base, lambda kept: self._enough(small, kept), fresh=bool(needed))

    def _besides(self, plan: Plan, base: Sequence[str], choices: Sequence[Sequence[str]]) -> list[str]:
        """Returns the patches that are needed besides `base`, searched in ever larger pools."""
        *likely, pool = choices
        pool = next((few for few in likely if self._enough(plan, [*base, *few])), pool)
        rest = [patch for patch in pool if patch not in base]
        return minimal(base, rest, lambda kept: self._enough(plan, kept), fresh=bool(base))

    def _pools(self, left: AuditVerdict, suspects: Iterable[str]) -> tuple[list[str], list[list[str]]]:
        """The patches for the import itself, and ever larger sets of the others: suspects, all. If `left` differs in
        later phases only, those with a phase in their id come first."""
        applied, known = self.with_dsfix.patches, registry.catalogue()
        imports = [each for each in sorted(applied) if each in known and known[each].patch.severity is Severity.IMPORT]
        suspected = [suspect for suspect in suspects if suspect in applied and suspect not in imports]
        rest = [each for each in sorted(applied) if each not in (*suspected, *imports)]
        choices = [each for each in (suspected, [*suspected, *rest] if rest else []) if each] or [[]]
        phases = {difference.phase for difference in left.differences}
        named = [patch for patch in applied if any(phase in patch for phase in phases)]
        if named and "training" not in phases:
            choices = [named, *(list(dict.fromkeys([*named, *few])) for few in choices)]
        return imports, choices


def _named_by(errors: Iterable[str], applied: Iterable[str]) -> list[str]:
    """Returns those of `applied` whose symptom matches one of the errors."""
    known = registry.catalogue()
    symptoms = {name: known[name].patch.symptom for name in sorted(applied) if name in known}
    return [name for name, text in symptoms.items() if text and any(re.search(text, error) for error in errors)]


def _with(kept: Sequence[str], applied: Sequence[str]) -> str:
    if len(kept) <= 1:
        return f"with {kept[0]} only" if kept else "without dsfix"
    return f"with {len(kept)} of {len(applied)} patches"


def _kinds(verdict: AuditVerdict) -> set[tuple[str, str]]:
    return {(difference.phase, difference.what) for difference in verdict.differences}


def _within(verdict: AuditVerdict, plan: Plan) -> AuditVerdict:
    """Returns what a verdict on more phases says about `plan`."""
    visible = tuple(each for each in verdict.differences if each.phase in ("training", *plan.phases))
    errors = verdict.errors if any(each.what == "error" for each in visible) else ()
    return replace(verdict, differences=visible, errors=errors)


def _narrowed(plan: Plan, verdict: AuditVerdict) -> Plan:
    """Returns the plan with only the phases that show the verdict's differences; none if the training differs."""
    if verdict.failed:
        return plan
    differing = {difference.phase for difference in verdict.differences}
    phases = tuple(phase for phase in plan.phases if phase in differing)
    return replace(plan, phases=phases if differing <= {*phases} else ())


def minimal(
    base: Sequence[_Item], items: Sequence[_Item], enough: Callable[[Sequence[_Item]], bool], fresh: bool
) -> list[_Item]:
    """Returns a minimal subset of `items` that is enough together with `base`, given that all of them are.

    Junker, QuickXplain (AAAI 2004): about 2 k log(n / k) tests for k of n. fresh: `base` alone has not been tested.
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
