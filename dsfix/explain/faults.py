"""All that can be recognised: the signatures, and the patches that show a symptom, each fault once."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .. import rules
from ..engine import registry
from ..patch import Patch, Severity
from .literals import Clause, required, trigger
from .segments import Segment
from .signature import Role, Signature

_WHY = re.compile(r"^Why: (.*(?:\n(?!\w+: ).*)*)", re.M)


@dataclass(frozen=True)
class Expression:
    """A regular expression, and what a text has to contain for it. `patch`: the one whose symptom it is, or ""."""

    pattern: re.Pattern[str]
    clauses: tuple[Clause[str], ...]
    patch: str = ""

    def places(self, text: str) -> list[tuple[int, int]]:
        """Where its matches begin and end."""
        for clause in self.clauses:
            for literal in clause:
                if literal in text:
                    break
            else:
                return []
        return [match.span() for match in self.pattern.finditer(text)]


@dataclass(frozen=True)
class Fault:
    """`affects`: ranges for the reader, the signature's and each patch's. `spread`: several ranks show it together."""

    id: str
    title: str
    what: str
    remedy: str
    role: Role
    affects: tuple[Mapping[str, str], ...]
    patches: tuple[str, ...]
    evidence: tuple[str, ...]
    expressions: tuple[Expression, ...]
    spread: bool

    def matches(self, segment: Segment) -> dict[str, list[tuple[int, int]]]:
        """Ids of patches whose symptoms are there, "" for the signature -> where the matches begin and end."""
        found = ((each.patch, each.places(segment.text)) for each in self.expressions)
        return {patch: places for patch, places in found if places}


@functools.cache
def known() -> tuple[Fault, ...]:
    """Every signature, then every symptom of a patch that no signature names."""
    catalogue = {entry.id: entry for entry in registry.catalogue().values() if entry.patch.symptom}
    signatures = tuple(rules.declared(f"{__package__}.signatures", "SIGNATURES"))
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
    """What has to be looked for in a log, so that no fault is missed."""
    expressions = (expression for fault in known() for expression in fault.expressions)
    return {literal for expression in expressions for literal in trigger(list(expression.clauses))}


def _of_signature(signature: Signature, catalogue: Mapping[str, registry.Entry]) -> Fault:
    patches = [catalogue[each].patch for each in signature.patches if each in catalogue]
    return Fault(
        id=signature.id,
        title=signature.title,
        what=signature.what,
        remedy=signature.remedy,
        role=signature.role,
        affects=(*filter(None, [signature.affects]), *(patch.affects for patch in patches)),
        patches=signature.patches,
        evidence=(*signature.evidence, *(link for patch in patches for link in patch.upstream)),
        expressions=(
            *([_expression(signature.pattern)] if signature.pattern else []),
            *(_expression(catalogue[each].patch.symptom, each) for each in signature.patches if each in catalogue),
        ),
        spread=any(map(_spread, patches)),
    )


def _of_patches(entries: Sequence[registry.Entry]) -> Fault:
    """Several where a bug goes on in other code: the last one tells of it."""
    entry = next((entry for entry in entries if not entry.patch.continued_by), entries[-1])
    patch = entry.patch
    why = _WHY.search(inspect.cleandoc(entry.docstring))
    return Fault(
        id=entry.id,
        title=patch.title,
        what=" ".join(why.group(1).split()) if why else "",
        remedy=f"DeepSpeed {patch.fixed_in} or newer."
        if patch.fixed_in
        else "No release of DeepSpeed has a fix so far.",
        role=Role.CAUSE,
        affects=tuple(each.patch.affects for each in entries),
        patches=tuple(each.id for each in entries),
        evidence=tuple(dict.fromkeys(link for each in entries for link in each.patch.upstream)),
        expressions=tuple(_expression(each.patch.symptom, each.id) for each in entries),
        spread=_spread(patch),
    )


def _spread(patch: Patch) -> bool:
    """A hang shows itself on the rank that waits, which is not the one that does not come."""
    return patch.severity is Severity.HANG and patch.ranks > 1


def _expression(pattern: str, patch: str = "") -> Expression:
    return Expression(re.compile(pattern), tuple(required(pattern)), patch)
