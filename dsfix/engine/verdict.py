"""Whether a patch applies here, from version numbers and source text alone: nothing of DeepSpeed is imported."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from ..patch import Change, Edit, Patch, Provide, Source
from . import anchors
from .memory import Memory
from .outcome import Outcome, Refused
from .registry import Entry
from .settings import Settings
from .source import Block, find_blocks, module_file, split_target, text_of, while_unchanged
from .versions import Fit, Gate, gate, installed


@dataclass(frozen=True)
class Verdict:
    """`pending`: the patch applies as soon as its modules are imported; any other outcome: it stays out."""

    outcome: Outcome
    reason: str


def decide(entry: Entry, settings: Settings) -> Verdict:
    """The verdict before anything is imported: user's choice, version gate, source."""
    try:
        return before_source(entry, settings) or by_source(entry.patch)
    except Exception as error:  # one declaration that cannot be evaluated must not cost the others
        code = f" in `{error.text.strip()}`" if isinstance(error, SyntaxError) and error.text else ""
        return Verdict(Outcome.FAILED, f"{type(error).__name__}: {error}{code}")


def if_asked_for(entry: Entry, settings: Settings) -> Verdict:
    """The same where somebody names the patch: one that is off by default is on then."""
    on = dataclasses.replace(entry.patch, default=True)
    return decide(dataclasses.replace(entry, patch=on), settings)


def before_source(entry: Entry, settings: Settings) -> Verdict | None:
    """What the user's choice and exact version numbers settle; None where the source has to be read."""
    why = settings.disabled(entry.id, entry.patch.default)
    if why is not None:
        return Verdict(Outcome.DISABLED, why)
    gated = gate(entry.patch)
    return Verdict(Outcome.NOT_AFFECTED, gated.reason) if gated.fit is Fit.OUTSIDE else None


def by_source(patch: Patch, memory: Memory | None = None) -> Verdict:
    """What the installed source says of a patch whose version gate is not closed."""
    gated = gate(patch)
    refused = _refusal(patch) if memory is None else memory.refusal(patch, _refusal)
    if refused is not None:
        return _verdict_of(refused, gated)
    if gated.fit is Fit.UNSURE and not (patch.present or any(isinstance(c, Edit) for c in patch.changes)):
        return _verdict_of(Refused(Outcome.DRIFTED, "there is no source to judge it by"), gated)
    verbs = dict.fromkeys(f"{type(change).__name__} of {change.qualname}" for change in patch.changes)
    where = ", ".join(patch.modules)
    return Verdict(Outcome.PENDING, f"{gated.reason}{_by_source(gated)}: {', '.join(verbs)} when {where} is imported")


def _refusal(patch: Patch) -> Refused | None:
    """Why the source is not one to apply the patch to."""
    try:
        for evidence in patch.fixed:
            if _stands(evidence):
                raise Refused(Outcome.ALREADY_FIXED, f"{_where(evidence)} has `{anchors.first_line(evidence.code)}`")
        _check_all(patch.changes)
        for evidence in patch.present:
            if not _stands(evidence):
                raise Refused(Outcome.DRIFTED, f"{_where(evidence)} has no `{anchors.first_line(evidence.code)}`")
    except Refused as refused:
        return refused
    return None


def _by_source(gated: Gate) -> str:
    return ", but its source has the bug" if gated.fit is Fit.UNSURE else ""


def _verdict_of(refused: Refused, gated: Gate) -> Verdict:
    if refused.outcome is Outcome.DRIFTED and gated.fit is Fit.UNSURE and not gated.near:
        # a build far from the affected releases was not expected to have the bug
        return Verdict(Outcome.NOT_AFFECTED, f"{gated.reason}, and its source does not have the bug: {refused.reason}")
    return Verdict(refused.outcome, f"{gated.reason}: {refused.reason}")


def _where(evidence: Source) -> str:
    return evidence.qualname or evidence.target


def _stands(evidence: Source) -> bool:
    """Whether the evidence is in the source.

    Raises:
        Refused: drifted where the file is not there.
    """
    path = _file(evidence.module)
    if not anchors.may_occur(text_of(path) or "", evidence.code):
        return False
    if not evidence.qualname:
        return anchors.occurs(_top_level(path), evidence.code)
    for block in find_blocks(path, evidence.qualname):
        if not anchors.may_occur(block.text, evidence.code):
            continue
        if anchors.occurs(anchors.inner_function(block.tree(), split_target(evidence.qualname)[1]), evidence.code):
            return True
    return False


@while_unchanged
def _top_level(path: str) -> ast.Module:
    """The file's syntax tree without the bodies of its functions and classes."""
    try:
        tree = ast.parse(text_of(path) or "")
    except SyntaxError:
        return ast.Module(body=[], type_ignores=[])
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            node.body = []
    return tree


def _check_all(changes: Sequence[Change]) -> None:
    """Raises Refused where the changes cannot be made to the source as it is, all of them."""
    made = []
    for change in changes:
        try:
            _check(change)
        except Refused as refused:
            if refused.outcome is not Outcome.ALREADY_FIXED:
                raise
            made.append(refused)
    if made and len(made) == len(changes):
        raise made[0]
    if made:
        raise Refused(Outcome.DRIFTED, f"only a part of the fix is in the source: {made[0].reason}")


def _check(change: Change) -> None:
    """Raises Refused where the change cannot be made to the source as it is."""
    if isinstance(change, Provide):
        return
    if isinstance(change, Edit):
        places(change)
        return
    if change.qualname.rpartition(".")[2] not in (text_of(_file(change.module)) or ""):
        raise Refused(Outcome.DRIFTED, f"{change.module} has no {change.qualname}")


def places(edit: Edit) -> tuple[Block, list[anchors.Place]]:
    """Where an edit goes in the installed source: the function's block, the places in its syntax tree.

    Raises:
        Refused: already-fixed, or drifted.
    """
    blocks = find_blocks(_file(edit.module), edit.qualname)
    refused = Refused(Outcome.DRIFTED, f"{edit.module} has no function {edit.qualname}")
    for block in blocks:
        try:
            return block, anchors.locate(edit, anchors.inner_function(block.tree(), anchors.edit_path(edit)))
        except Refused as error:
            refused = error
    raise refused


def _file(module: str) -> str:
    path = module_file(module)
    if path is None:
        package = module.partition(".")[0]
        version = installed(package)
        what = f"{package} {version} is registered as installed" if version else f"there is a {package}"
        raise Refused(Outcome.DRIFTED, f"{what}, but it has no module {module}: reinstall {package}")
    if text_of(path) is None:
        raise Refused(Outcome.DRIFTED, f"{path} has no readable source")
    return path
