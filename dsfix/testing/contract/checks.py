"""The checks that every patch must pass on a release that it applies to; one that it fails raises ContractBroken.

The reference for an Edit is the compiled file with the edit written into it; for the other kinds of changes, what is in
effect in a process that imports dsfix first.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

from dsfix.patch import Change, Edit, Provide, Replace
from dsfix.testing.contract import drift
from dsfix.testing.contract.case import Case, compiled
from dsfix.testing.contract.contract_process import describe

Look = Mapping[str, Any]
_PROCESS = Path(describe.__file__).resolve().parent
_KINDS = ("the job", "forked before the import", "forked after the import", "spawned", "a new program")


class NotApplicable(Exception):
    """The check does not apply to this patch; the message says why."""


def _place(change: Change) -> str:
    return describe.place(type(change).__name__, change.module, change.qualname)


def _codes(text: str, qualname: str) -> dict[str, list[int]]:
    """Description -> lines of the code of a target in a file's text."""
    return {describe.of_code(code): describe.lines_of(code) for code in compiled(text, qualname)}


@functools.cache
def shipped(case: Case) -> Look:
    """What is at the targets without the patch. Raises NotApplicable if a target cannot be imported here."""
    observed = case.look(**case.off)
    for module in case.patch.modules:
        error = observed["errors"].get(module, "")
        named = error.startswith(f"ModuleNotFoundError: No module named '{module}'")
        if error and not named and "deepspeed" not in observed["errors"]:
            raise NotApplicable(f"without the patch {module} cannot be imported here: {error}")
    _check_errors(case, observed, "without the patch", fixed=False)
    for edit in case.edits:
        seen, codes = observed["seen"][_place(edit)], _codes(case.text(edit.module), edit.qualname)
        case.expect(codes.get(seen["text"]) == seen["lines"], f"{edit.target} in memory differs from its file")
    return observed


@functools.cache
def written(case: Case) -> Mapping[str, str]:
    """module -> text with the patch's edits."""
    return case.edited(case.id, telling=False) if case.edits else {}


@functools.cache
def in_force(case: Case) -> Look:
    """What is at the targets with the patch, with dsfix imported first."""
    before = shipped(case)["seen"]
    observed = case.look(**case.on)
    _check_outcome(case, observed, "with dsfix imported first", "applied")
    _check_errors(case, observed, "with dsfix imported first", fixed=True)
    for change in case.patch.changes:
        place = _place(change)
        now, original = observed["seen"][place]["text"], before[place]["text"]
        if isinstance(change, Edit):
            texts = case.text(change.module), _written_with_effects(case)[change.module]
            old, new = (_codes(text, change.qualname) for text in texts)
            case.expect(set(new) - set(old), f"the edits of {change.target} change nothing")
            if now not in set(new) - set(old):
                raise case.broken(
                    f"{place} differs from the file with the edits: "
                    + describe.difference(now, next(iter(set(new) - set(old))))
                )
        elif isinstance(change, Provide):
            case.expect(original == describe.ABSENT, f"{place} exists without the patch: {original}")
            case.expect(now != describe.ABSENT, f"{place} is missing with the patch")
        elif isinstance(change, Replace):
            case.expect(now != original, f"{place} is unchanged by the patch")
    return observed


@functools.cache
def _written_with_effects(case: Case) -> Mapping[str, str]:
    """Like `written`, with the edits' effect reports."""
    return case.edited(case.id, telling=True) if case.edits else {}


def _check_outcome(case: Case, found: Look, when: str, *outcomes: str, reason: str = "") -> None:
    """The patch has one of these outcomes, with the reason, and exactly one warning if and only if it is in trouble."""
    outcome, why = found["reports"].get(case.id, ("not in the report", ""))
    case.expect(outcome in outcomes, f"{when} it is {outcome} ({why}), not {' or '.join(outcomes)}")
    case.expect(reason in why, f"{when} the reason is {why!r}, which does not contain {reason!r}")
    if outcome in ("drifted", "conflict", "failed"):
        case.expect(len(found["warnings"]) == 1, f"{when} there must be one warning, got {found['warnings']}")
        warning = found["warnings"][0]
        expected = warning.startswith(f"{case.id} was not applied ({outcome})") and why in warning
        case.expect(expected, f"{when} the warning is {warning!r}")
        case.expect("Remedy: " in warning, f"{when} the warning names no remedy: {warning!r}")
    else:
        case.expect(not found["warnings"], f"{when} there are warnings: {found['warnings']}")


def _check_errors(case: Case, found: Look, when: str, fixed: bool) -> None:
    """All relevant modules were imported; without its fix an import patch's own error is accepted."""
    for name in ("torch", "deepspeed", *case.patch.modules):
        error = found["errors"].get(name)
        expected = error and not fixed and case.is_import_patch and re.search(case.patch.symptom, error)
        case.expect(not error or expected, f"{when} the import of {name} fails: {error}")


def _check_same(case: Case, seen: Look, expected: Look, when: str, *what: str) -> None:
    for target, wanted in expected.items():
        for each in what or ("text", "lines"):
            if seen[target][each] == wanted[each]:
                continue
            if each == "text":
                differs = describe.difference(seen[target][each], wanted[each])
            else:
                differs = f"{each} {sorted(set(seen[target][each]) ^ set(wanted[each]))[:5]}"
            raise case.broken(f"{when} {target} differs: {differs}")


def every_import_order(case: Case) -> None:
    """Effect and report are the same for every order of importing dsfix and the targets.

    torch may be imported from the start unless it is a target; `all_at_once` covers dsfix before everything.
    """
    expected = in_force(case)
    modules = [module for module in case.modules if module != "torch" or module in case.patch.modules]
    items = list(dict.fromkeys(["dsfix", *modules]))
    (leaves,) = case.run(["orders", items], unloaded=items, **case.on)
    shared: dict[str, Any] = {}
    for results in leaves:
        when = f"in the order {', '.join(results['order'])}"
        early = results["order"].index("dsfix") == 0
        for name, error in results["failed"].items():
            own = case.is_import_patch and re.search(case.patch.symptom, error)
            case.expect(own or case.companions or name in case.evidence, f"{when} the import of {name} fails: {error}")
            case.expect(not early or name in case.evidence, f"{when} the import of {name} fails: {error}")
        _check_errors(case, results, f"{when}, tried again,", fixed=True)
        _check_outcome(case, results, when, "applied")
        _check_same(case, results["seen"], expected["seen"], when)
        for target, seen in results["seen"].items():
            same = shared.setdefault(target, seen["shared"]) == seen["shared"]
            case.expect(
                same, f"{when} {target} is shared by {seen['shared']}, in a different order by {shared[target]}"
            )
    case.expect(any(results["order"][0] == "dsfix" for results in leaves), "no order starts with dsfix")


def disabled_by_the_environment(case: Case) -> None:
    """With DSFIX_SKIP, DSFIX_ONLY or DSFIX_DISABLE the patch changes nothing and does not warn."""
    settings: dict[str, Any] = {"DSFIX_SKIP": case.off["DSFIX_SKIP"], "DSFIX_DISABLE": "1"}
    mine = set(case.patch.modules)
    others = [each.id for each in case.catalogue.values() if each.id != case.id and not mine & set(each.patch.modules)]
    if case.companions or others:
        settings["DSFIX_ONLY"] = ",".join([companion.id for companion in case.companions] or others[:1])
    for variable, value in settings.items():
        when = f"with {variable}={value}"
        load = ["load", "dsfix", *case.modules]
        cold = str(case.machine.directory())  # or a disabled patch is not even loaded
        (results,) = case.run(["provide"], load, ["look"], **{variable: value, "DSFIX_CACHE": cold})
        _check_outcome(case, results, when, "disabled", reason=variable)
        _check_errors(case, results, when, fixed=False)
        _check_same(case, results["seen"], shipped(case)["seen"], when)


def a_hand_edit_is_left_alone(case: Case) -> None:
    """With the patch's own edits in the file, the patch is already-fixed and changes nothing."""
    if len(case.edits) != len(case.patch.changes):
        raise NotApplicable("not all of its changes are source edits")
    observed = case.look(copy=case.copied(written(case)), **case.on)
    when = "with its own edits in the source"
    _check_outcome(case, observed, when, "already-fixed")
    _check_errors(case, observed, when, fixed=True)
    _check_untouched(case, observed, written(case), when)


def _check_untouched(case: Case, found: Look, texts: Mapping[str, str], when: str) -> None:
    """Each edited function that is in the file equals that in the file."""
    for edit in case.edits:
        codes = _codes(texts.get(edit.module) or case.text(edit.module), edit.qualname)
        seen = found["seen"][_place(edit)]
        case.expect(
            not codes or codes.get(seen["text"]) == seen["lines"], f"{when} {edit.target} differs from its file"
        )


def _drifts(case: Case) -> Iterator[tuple[str, Callable[[], dict[str, str]]]]:
    """(description of the change, function returning module -> changed text)"""

    def changed(module: str, change: Callable[..., str], *arguments: Any) -> dict[str, str]:
        root, path = case.file(module)
        return {module: change(root / path, *arguments)}

    for edit in dict.fromkeys((*case.edits[:1], *case.edits[-1:])):
        what = f"`{edit.anchor.splitlines()[0]}` of {edit.target}"
        yield f"with {what} twice", functools.partial(changed, edit.module, drift.anchor_twice, edit)
        yield f"without {what}", functools.partial(changed, edit.module, drift.anchor_gone, edit)
    for change in case.patch.changes[:1]:
        if not isinstance(change, Provide):
            keep_name = isinstance(change, Edit)  # keeps an alias of that name for modules that import it
            arguments = (change.module, drift.function_renamed, change.qualname, keep_name)
            yield f"with {change.target} renamed", functools.partial(changed, *arguments)
    for evidence in case.patch.present:
        what = f"without the evidence `{evidence.code.splitlines()[0]}` in {evidence.target}"
        yield what, functools.partial(changed, evidence.module, drift.evidence_gone, evidence)


def drifted_source_is_left_alone(case: Case) -> None:
    """If the source has drifted, the patch warns once and changes nothing, and DeepSpeed works."""
    examined, impossible = 0, []
    for when, change in _drifts(case):
        try:
            texts = change()
        except drift.NotPossible as reason:
            impossible.append(f"{when}: {reason}")
            continue
        copy = case.copied(texts)
        without = case.look(copy=copy, **case.off)
        if not set(without["errors"]) <= set(shipped(case)["errors"]):
            impossible.append(f"{when} the release cannot be imported: {without['errors']}")
            continue
        observed = case.look(copy=copy, **case.on)
        _check_outcome(case, observed, when, "drifted")
        case.expect(observed["errors"] == without["errors"], f"{when} the import fails: {observed['errors']}")
        _check_same(case, observed["seen"], without["seen"], when)
        if not examined:
            strict = case.look(copy=copy, DSFIX_STRICT="1", **case.on)
            raised = [each for each in strict["errors"].values() if each.startswith("StrictError: ")]
            case.expect(any(case.id in each for each in raised), f"{when} DSFIX_STRICT=1 raises {strict['errors']}")
        examined += 1
    if not examined:
        raise NotApplicable(f"its source cannot be made to drift: {'; '.join(impossible) or 'it has none'}")


def another_package_comes_first(case: Case) -> None:
    """An object that another package put at the targets before dsfix stays there."""
    shipped(case)
    provides = [isinstance(change, Provide) for change in case.patch.changes]
    modules = list(case.patch.modules) if all(provides) else case.targets
    steps = [["provide"], ["load", *modules], ["replace"], ["remember"], ["load", "dsfix"], ["look"], ["compare"]]
    theirs, results, others = case.run(*steps, **case.on)
    when = "with another package's object at its targets"
    if not theirs:
        raise NotApplicable("its targets are plain values, whose owner cannot be determined")
    case.expect(not results["errors"], f"{when} the import fails: {results['errors']}")
    case.expect(not others, f"{when} dsfix has replaced it: {', '.join(others)}")
    outcomes = ["already-fixed"] * any(provides) + ["conflict"] * (not all(provides))
    _check_outcome(case, results, when, *outcomes)


def it_can_be_reverted(case: Case) -> None:
    """dsfix.revert restores the original objects and keeps the changes of other patches."""
    shipped(case)
    modules = list(case.patch.modules)
    if not all(isinstance(change, Provide) for change in case.patch.changes):
        modules = ["torch", "deepspeed", *modules]
    observed = case.run(
        *(["provide"], ["load", *modules], ["remember"], ["load", "dsfix"], ["look"], ["compare"]),
        *(["probe"], ["occupied"], ["look"], ["revert", case.id], ["look"], ["unprobe"], ["compare"]),
        *(["probe"], ["look"], ["unprobe"], ["compare"]),
        **case.on,
    )
    applied, changed, not_probed, occupied, both, reverted, left, _, other, left_at_the_end = observed
    case.expect(not applied["errors"], f"the import fails: {applied['errors']}")
    _check_outcome(case, applied, "with dsfix imported last", "applied")
    targets = set(applied["seen"])
    case.expect(set(changed) == targets, f"dsfix has put nothing at {', '.join(targets - set(changed))}")
    case.expect(not not_probed, f"no other patch can edit {', '.join(not_probed)} with it")
    _check_outcome(case, reverted, "reverted", "disabled", reason="revert")
    case.expect(not left, f"reverted, {', '.join(left)} is not the original object")
    case.expect(not left_at_the_end, f"another patch has left changes at {', '.join(left_at_the_end)}")
    _check_same(case, reverted["seen"], other["seen"], "reverted while another patch is in effect,")
    for edit in case.edits:
        if edit.qualname in occupied:
            continue
        place = _place(edit)
        alone, together = other["seen"][place]["text"], both["seen"][place]["text"]
        case.expect(
            alone not in (together, shipped(case)["seen"][place]["text"]),
            f"two patches of {edit.target} are not both in effect",
        )


def importing_again_changes_nothing(case: Case) -> None:
    """After reloading dsfix, importing it again, or reloading a target module, the patch is in effect exactly once."""
    expected = in_force(case)["seen"]
    load = ["load", "dsfix", *case.modules]
    _, results = case.run(load, ["reload", "dsfix"], ["look"], **case.on)
    _check_again(case, results, expected, "with dsfix reloaded")
    (results,) = case.run(load, ["forget"], ["load", "dsfix"], ["look"], **case.on)
    _check_again(case, results, expected, "with dsfix imported again")
    for module in case.patch.modules:
        why, results = case.run(load, ["reload", module], ["look"], **case.on)
        if why:
            alone, _ = case.run(load, ["reload", module], ["look"], **case.off)
            case.expect(alone, f"with dsfix, {module} cannot be reloaded: {why}")
            continue
        _check_again(case, results, expected, f"with {module} reloaded")


def _check_again(case: Case, found: Look, expected: Look, when: str) -> None:
    _check_outcome(case, found, when, "applied")
    _check_errors(case, found, when, fixed=True)
    _check_same(case, found["seen"], expected, when)


def _check_processes(case: Case, found: _Processes, expected: Look) -> None:
    """`expected`: what is at the targets in a process that imports dsfix first."""
    mine = {place: expected[place] for place in map(_place, case.patch.changes)}
    by_pid = {report["pid"]: report for report in found.reports}
    case.expect(len(by_pid) == len(found.reports), "a process has written two reports")
    case.expect(not found.partial, f"a report was left incomplete: {found.partial}")
    for kind in _KINDS:
        process = found.of(case, kind)
        _check_errors(case, process, f"in the process {kind}", fixed=True)
        _check_outcome(case, {**process, "warnings": []}, kind, "applied")
        _check_same(case, process["seen"], mine, f"in the process {kind}")
        outcomes = {e["id"]: e["outcome"] for e in by_pid.get(process["pid"], {"patches": []})["patches"]}
        case.expect(outcomes.get(case.id) == "applied", f"the report of the process {kind} says {outcomes}")


@dataclasses.dataclass(frozen=True)
class _Processes:
    """The results of the processes of a job by kind; their reports; names of incomplete reports; the error."""

    results: Mapping[str, Any]
    reports: Sequence[Mapping[str, Any]]
    partial: Sequence[str]
    error: str

    def of(self, case: Case, kind: str) -> Look:
        """The result of one process. Raises ContractBroken if it gave none."""
        case.expect(kind in self.results, f"the process {kind} did not finish\n{self.error}")
        result: Look = self.results[kind]
        return result


@functools.cache
def _processes(case: Case) -> _Processes:
    """A job that imports the targets of the case's patches."""
    directory = case.machine.directory()
    (directory / "results").mkdir(parents=True)
    job = {
        "modules": case.targets,
        "changes": case.changes,
        "packages": str(_PROCESS.parent),
        "results": str(directory / "results"),
    }
    script, reports = _PROCESS / "training_script.py", directory / "reports"
    variables: dict[str, Any] = {"CONTRACT_JOB": json.dumps(job), "DSFIX_REPORT": str(reports)}
    error = ""
    try:
        case.run(["job", str(script)], **variables, **case.on)
    except AssertionError as failed:  # kept in the cached result, so that not every patch of the release waits for it
        error = str(failed)
    results = [json.loads(path.read_text(encoding="utf-8")) for path in (directory / "results").iterdir()]
    files = list(reports.iterdir()) if reports.is_dir() else []
    whole = [file for file in files if file.name.endswith(".json") and not file.name.startswith(".")]
    return _Processes(
        results={each["kind"]: each for each in results},
        reports=[json.loads(each.read_text(encoding="utf-8")) for each in whole],
        partial=sorted(file.name for file in files if file not in whole),
        error=error,
    )


@functools.cache
def _all_on(together: Case) -> Look:
    """What is at the targets of all patches for a release, with all patches enabled and dsfix imported first."""
    (results,) = together.run(["load", "dsfix", *together.targets], ["look"], **together.on)
    return dict(results)


def all_at_once(cases: Sequence[Case]) -> None:
    """All patches for one release are in effect together in every process, and can be reverted in any order.

    cases: one for each patch that applies to the release.
    """
    together = cases[0].all_together
    cases = [each for each in cases if _can_be_imported(each)]
    ids = [each.id for each in cases]
    observed = _all_on(together)
    all_ids = [each.id for each in together.together]
    texts = together.edited(*all_ids, telling=True) if any(each.edits for each in cases) else {}
    for case in cases:
        mine = [each for each in observed["warnings"] if each.startswith(case.id)]
        _check_outcome(case, {**observed, "warnings": mine}, "with all patches on", "applied")
        _check_errors(case, observed, "with all patches on", fixed=True)
    together.expect(not observed["warnings"], f"with all patches on there are warnings: {observed['warnings']}")
    for case in cases:
        for edit in case.edits:
            code = observed["seen"][_place(edit)]["text"]
            expected = _codes(texts[edit.module], edit.qualname)
            differs = f"with all patches on {edit.target} differs from the file with all edits"
            case.expect(code in expected, f"{differs}: {describe.difference(code, next(iter(expected)))}")
    orders = [ids, ids[::-1], random.Random(together.release).sample(ids, len(ids))]
    (reverts,) = together.run(["load", "dsfix", *together.targets], ["reverts", orders], **together.on)
    for step in reverts:
        gone = step["order"][: step["order"].index(step["reverted"]) + 1]
        for case in cases:
            when = f"after the revert of {', '.join(gone)}"
            _check_outcome(case, step, when, "disabled" if case.id in gone else "applied")
        if len(gone) == len(ids):
            for case in cases:
                before = {place: shipped(case)["seen"][place] for place in map(_place, case.patch.changes)}
                _check_same(case, step["seen"], before, f"with everything reverted in the order {', '.join(gone)}")
    for case in cases:
        _check_processes(case, _processes(together), observed["seen"])


def _can_be_imported(case: Case) -> bool:
    try:
        shipped(case)
    except NotApplicable:
        return False
    return True


CHECKS = (
    every_import_order,
    disabled_by_the_environment,
    a_hand_edit_is_left_alone,
    drifted_source_is_left_alone,
    another_package_comes_first,
    it_can_be_reverted,
    importing_again_changes_nothing,
)
