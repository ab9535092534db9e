"""Whether a patch applies here, from version numbers and source text alone: nothing of DeepSpeed is imported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..catalogue import registry
from ..catalogue.registry import Summary
from ..outcome import ChangeRefused, Outcome
from ..patch import Change, Edit, Patch, Replace, Source
from ..settings import Settings
from ..versions import RangeMatch, gate, module_file, nearest_existing
from . import anchors
from .cache import Cache, declaration_key, digest, file_stamps
from .source import FunctionSource, digest_of, find_blocks, text_of, top_level

NO_SOURCE = "has no readable source"


class Verdict(NamedTuple):
    """`pending`: the patch applies as soon as its modules are imported; any other outcome: it stays out."""

    outcome: Outcome
    reason: str


def before_source(summary: Summary, settings: Settings, cache: Cache) -> Verdict | None:
    """The verdict from the user's settings and exact version numbers; None if the source must be read."""
    why = settings.disabled(summary.id, summary.default, summary.severity)
    if why is not None:
        return Verdict(Outcome.DISABLED, why)
    gated = gate(summary.affects, cache.gate)
    return Verdict(Outcome.NOT_AFFECTED, gated.reason) if gated.fit is RangeMatch.OUTSIDE else None


def by_source(patch: Patch, cache: Cache) -> Verdict:
    """The verdict from the installed source, for a patch whose version gate is not closed."""
    gated = gate(patch.affects, cache.gate)
    refused = _remembered_refusal(patch, cache)
    by_text = any(isinstance(each, (Edit, Source)) for each in (*patch.changes, *patch.present))
    if refused is None and gated.newer and not patch.present:
        refused = ChangeRefused(Outcome.UNPROVEN, "the patch has no evidence (`present=`) to recognise the bug by")
    elif refused is None and gated.fit is RangeMatch.UNSURE and not by_text:
        refused = ChangeRefused(Outcome.DRIFTED, "DeepSpeed's source is not available")
    if refused is None:
        verbs = ", ".join(dict.fromkeys(f"{type(change).__name__} of {change.qualname}" for change in patch.changes))
        judged = ", but its source has the bug" if gated.fit is RangeMatch.UNSURE or gated.newer else ""
        when = f"when {', '.join(patch.modules)} is imported"
        return Verdict(Outcome.PENDING, f"{gated.reason}{judged}: {verbs} {when}")
    if refused.outcome is Outcome.DRIFTED and gated.newer:
        return Verdict(Outcome.UNPROVEN, f"{gated.reason}: {refused.reason}")
    unexpected = gated.fit is RangeMatch.UNSURE and not gated.near and not refused.reason.endswith(NO_SOURCE)
    if refused.outcome is Outcome.DRIFTED and unexpected:
        # a build that was not expected to have the bug
        return Verdict(Outcome.NOT_AFFECTED, f"{gated.reason}, and its source does not have the bug: {refused.reason}")
    return Verdict(refused.outcome, f"{gated.reason}: {refused.reason}")


def _remembered_refusal(patch: Patch, cache: Cache) -> ChangeRefused | None:
    paths, declaration = fingerprint_inputs(patch)
    key = ("source", paths, file_stamps(filter(None, map(nearest_existing, paths))), declaration)
    refusal = cache.cached(key, lambda: [] if registry.is_proven(fingerprint(paths, declaration)) else _refusal(patch))
    return ChangeRefused(Outcome(refusal[0][0]), refusal[0][1]) if refusal else None


def fingerprint(paths: Sequence[str], declaration: object) -> str:
    """A digest of what the verdict depends on: the text of the files and the patch's declaration."""
    return digest((declaration, [digest_of(path) for path in paths]))[:8].hex()


def fingerprint_inputs(patch: Patch) -> tuple[list[str], object]:
    """What decides whether the patch applies to the source: files and the patch's declaration."""
    evidence: tuple[Change | Source, ...] = (*patch.changes, *patch.present, *patch.fixed)
    paths = [module_file(name) or "" for name in sorted({each.module for each in evidence})]
    return paths, (len(patch.changes), len(patch.present), [declaration_key(each) for each in evidence])


def _refusal(patch: Patch) -> list[tuple[str, str]]:
    """Why the patch does not apply to the source, as its outcome and reason."""
    try:
        for evidence in patch.fixed:
            if _is_present(evidence):
                where = evidence.qualname or evidence.target
                raise ChangeRefused(Outcome.ALREADY_FIXED, f"{where} has `{anchors.first_line(evidence.code)}`")
        _check_all(patch.changes)
        for evidence in patch.present:
            if not _is_present(evidence):
                where = evidence.qualname or evidence.target
                raise ChangeRefused(Outcome.DRIFTED, f"{where} has no `{anchors.first_line(evidence.code)}`")
    except ChangeRefused as refused:
        return [(refused.outcome.value, refused.reason)]
    return []


def _is_present(evidence: Source) -> bool:
    """Whether the evidence is in the source. Raises ChangeRefused if the file is missing."""
    path = _file(evidence.module)
    if not evidence.qualname:
        return bool(anchors.occurrences(top_level(path), evidence.code))
    return any(
        anchors.occurrences(anchors.inner_function(block.tree(), evidence.qualname), evidence.code)
        for block in find_blocks(path, evidence.qualname)
    )


def _check_all(changes: Sequence[Change]) -> None:
    """Raises ChangeRefused unless all changes can be made to the source."""
    made = []
    for change in changes:
        try:
            if isinstance(change, Edit):
                places(change)
            elif isinstance(change, Replace):
                name, text = change.qualname.rpartition(".")[2], text_of(_file(change.module)) or ""
                if name not in text:
                    raise ChangeRefused(Outcome.DRIFTED, f"{change.module} has no {change.qualname}")
        except ChangeRefused as refused:
            if refused.outcome is not Outcome.ALREADY_FIXED:
                raise
            made.append(refused)
    if made and len(made) == len(changes):
        raise made[0]
    if made:
        raise ChangeRefused(Outcome.DRIFTED, f"the source contains only part of the fix: {made[0].reason}")


def places(edit: Edit) -> tuple[FunctionSource, list[anchors.Place]]:
    """An edit's place in the installed source: the function's block, the places in its syntax tree.

    Raises ChangeRefused.
    """
    refused = ChangeRefused(Outcome.DRIFTED, f"{edit.module} has no function {edit.qualname}")
    for block in find_blocks(_file(edit.module), edit.qualname):
        try:
            return block, anchors.locate(edit, anchors.inner_function(block.tree(), edit.qualname))
        except ChangeRefused as error:
            refused = error
    raise refused


def _file(module: str) -> str:
    path = module_file(module)
    if path is None:
        package = module.partition(".")[0]
        raise ChangeRefused(Outcome.DRIFTED, f"{package} is incomplete: module {module} is missing; reinstall it")
    if text_of(path) is None:
        raise ChangeRefused(Outcome.DRIFTED, f"{path} {NO_SOURCE}")
    return path
