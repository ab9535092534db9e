"""All known problems: the signatures, and the patches with a symptom, each problem once."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .. import rules, versions
from ..catalogue import registry
from ..patch import Patch, Severity
from .literals import Clause, Literals, required, trigger
from .segments import Segment
from .signature import Role, Signature, load

_compiled = functools.cache(re.compile)  # few of them are used, and re keeps 512
_WHY = re.compile(r"^Why: (.*(?:\n(?!\w+: ).*)*)", re.M)


@dataclass(frozen=True)
class Expression:
    """A regular expression, and the strings that a match requires. patch: the one whose symptom it is, or ""."""

    pattern: str
    clauses: tuple[Clause[str], ...]
    patch: str = ""

    def places(self, text: str) -> list[tuple[int, int]]:
        for clause in self.clauses:
            for literal in clause:
                if literal in text:
                    break
            else:
                return []
        return [match.span() for match in _compiled(self.pattern).finditer(text)]


@dataclass(frozen=True)
class Problem:
    """affects: ranges, the signature's and each patch's. everywhere: other releases also have it. spread: the log lines
    of several ranks show it."""

    id: str
    title: str
    what: str
    remedy: str
    role: Role
    affects: tuple[Mapping[str, str], ...]
    everywhere: bool
    patches: tuple[str, ...]
    evidence: tuple[str, ...]
    expressions: tuple[Expression, ...]
    spread: bool

    def excluded_by(self, named: Mapping[str, str]) -> bool:
        """Whether none of the ranges includes the versions (distribution -> version) that a log names."""
        if self.everywhere:
            return False
        ranges = [
            {name: _for(name, each, named[name]) for name, each in affects.items() if name in named}
            for affects in self.affects
        ]
        return not any(rules.all_in_range(each, named) for each in ranges)

    def matches(self, segment: Segment) -> dict[str, list[tuple[int, int]]]:
        """Returns ids of patches whose symptoms match, "" for the signature -> the spans of the matches."""
        spans = ((each.patch, segment.printed(each.places(segment.text))) for each in self.expressions)
        return {patch: places for patch, places in spans if places}


@functools.cache
def all_problems() -> tuple[Problem, ...]:
    """Returns every signature, then every symptom of a patch that no signature names."""
    catalogue = {entry.id: entry for entry in registry.catalogue().values() if entry.patch.symptom}
    signatures = load()
    named = {patch for signature in signatures for patch in signature.patches}
    by_symptom: dict[str, list[registry.Entry]] = {}
    for entry in catalogue.values():
        if entry.id not in named:
            by_symptom.setdefault(entry.patch.symptom, []).append(entry)
    return (
        *(_of_signature(signature, catalogue) for signature in signatures),
        *(_of_patches(entries) for entries in by_symptom.values()),
    )


def literals() -> set[str]:
    """Returns the strings to search a log for so that no problem is missed."""
    expressions = (expression for problem in all_problems() for expression in problem.expressions)
    return {literal for expression in expressions for literal in trigger(list(expression.clauses))}


def possible(text: str) -> list[Problem]:
    """Returns the problems, in the order of `known`, of which the text has a string that a match requires."""
    problems, literals = _by_literal()
    candidates = {place for literal in [b"", *literals.within(text.encode())] for place in problems.get(literal, ())}
    return [all_problems()[place] for place in sorted(candidates)]


@functools.cache
def _by_literal() -> tuple[Mapping[bytes, list[int]], Literals]:
    """Returns string -> places in `known`, and a search for them; under b"" plug-ins' symptoms that require none."""
    by_literal: dict[bytes, list[int]] = {}
    for place, problem in enumerate(all_problems()):
        for expression in problem.expressions:
            for literal in trigger(list(expression.clauses)) or ("",):
                by_literal.setdefault(literal.encode(), []).append(place)
    return by_literal, Literals(filter(None, by_literal))


def _of_signature(signature: Signature, catalogue: Mapping[str, registry.Entry]) -> Problem:
    patches = [catalogue[each].patch for each in signature.patches if each in catalogue]
    return Problem(
        id=signature.id,
        title=signature.title,
        what=signature.what,
        remedy=signature.remedy,
        role=signature.role,
        affects=(*filter(None, [signature.affects]), *(patch.affects for patch in patches)),
        everywhere=bool(signature.pattern) and not (signature.affects or signature.pattern_of),
        patches=signature.patches,
        evidence=_links((*signature.evidence, *(link for patch in patches for link in patch.upstream))),
        expressions=(
            *([_expression(signature.pattern, signature.pattern_of)] if signature.pattern else []),
            *(_expression(catalogue[each].patch.symptom, each) for each in signature.patches if each in catalogue),
        ),
        spread=any(map(_spread, patches)),
    )


def _of_patches(entries: Sequence[registry.Entry]) -> Problem:
    """Several patches if a bug continues in changed code: the last one describes it."""
    entry = next((entry for entry in entries if not entry.patch.continued_by), entries[-1])
    patch = entry.patch
    why = _WHY.search(inspect.cleandoc(entry.docstring))
    return Problem(
        id=entry.id,
        title=patch.title,
        what=" ".join(why.group(1).split()) if why else "",
        remedy=f"DeepSpeed {patch.fixed_in} or later." if patch.fixed_in else "No DeepSpeed release has a fix yet.",
        role=Role.CAUSE,
        affects=tuple(each.patch.affects for each in entries),
        everywhere=False,
        patches=tuple(each.id for each in entries),
        evidence=_links(link for each in entries for link in each.patch.upstream),
        expressions=tuple(_expression(each.patch.symptom, each.id) for each in entries),
        spread=_spread(patch),
    )


def examined_from(affects: Mapping[str, str]) -> Mapping[str, str]:
    """Returns ranges to show: without a lower bound that is the earliest release that was examined."""
    shown = {name: _without_floor(name, specifiers) for name, specifiers in affects.items()}
    return {name: specifiers for name, specifiers in shown.items() if specifiers}


def _for(name: str, specifiers: str, version: str) -> str:
    """Returns a range; for a release older than any range, without a lower bound that is the earliest release."""
    older = name == "deepspeed" and rules.all_in_range({name: f"<{versions.EARLIEST_PROVEN}"}, {name: version})
    return _without_floor(name, specifiers) if older else specifiers


def _without_floor(name: str, specifiers: str) -> str:
    floor = f">={versions.EARLIEST_PROVEN}"
    return ",".join(word for word in specifiers.split(",") if name != "deepspeed" or word != floor)


def _links(links: Iterable[str]) -> tuple[str, ...]:
    """Returns each link once; GitHub also finds a pull request under issues/."""
    return tuple({link.replace("/pull/", "/issues/"): link for link in links}.values())


def _spread(patch: Patch) -> bool:
    """A hang appears on the waiting rank, not on the one that is missing."""
    return patch.severity is Severity.HANG and patch.ranks > 1


def _expression(pattern: str, patch: str = "") -> Expression:
    return Expression(pattern, tuple(required(pattern)), patch)
