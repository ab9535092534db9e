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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dsfix.patch import Change, Edit, Provide, Replace
from dsfix.testing.contract.case import Case
from dsfix.testing.contract.contract_process import describe

Look = Mapping[str, Any]
_PROCESS = Path(describe.__file__).resolve().parent
_KINDS = ("the job", "forked before the import", "forked after the import", "spawned", "a new program")


class NotApplicable(Exception):
    """The check does not apply to this patch; the message says why."""


def _place(change: Change) -> str:
    return describe.place(type(change).__name__, change.module, change.qualname)


def _codes(text: str, qualname: str) -> dict[str, list[int]]:
    """Description -> lines of the code of a target's outermost function in a file's text."""
    code, outer = compile(text, "file", "exec", dont_inherit=True), qualname.partition(".<locals>.")[0]
    return {describe.of_code(each): describe.lines_of(each) for each in describe.codes_named(code, outer)}


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
def in_force(case: Case) -> Look:
    """What is at the targets with the patch, with dsfix imported first."""
    before = shipped(case)["seen"]
    observed = case.look(**case.on)
    _check_outcome(case, observed, "with dsfix imported first", "applied")
    _check_errors(case, observed, "with dsfix imported first", fixed=True)
    edited = case.edited(case.id, telling=True)
    for change in case.patch.changes:
        place = _place(change)
        now, original = observed["seen"][place]["text"], before[place]["text"]
        if isinstance(change, Edit):
            texts = case.text(change.module), edited[change.module]
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


def _check_outcome(case: Case, observed: Look, when: str, expected: str, reason: str = "") -> None:
    """The patch has this outcome, with the reason, and nothing has warned."""
    outcome, why = observed["reports"].get(case.id, ("not in the report", ""))
    case.expect(outcome == expected, f"{when} it is {outcome} ({why}), not {expected}")
    case.expect(reason in why, f"{when} the reason is {why!r}, which does not contain {reason!r}")
    case.expect(not observed["warnings"], f"{when} there are warnings: {observed['warnings']}")


def _check_errors(case: Case, observed: Look, when: str, fixed: bool) -> None:
    """All relevant modules were imported; without its fix an import patch's own error is accepted."""
    for name in ("torch", "deepspeed", *case.patch.modules):
        error = observed["errors"].get(name)
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
    for leaf in leaves:
        when = f"in the order {', '.join(leaf['order'])}"
        early = leaf["order"].index("dsfix") == 0
        for name, error in leaf["failed"].items():
            own = case.is_import_patch and re.search(case.patch.symptom, error)
            case.expect(own or case.companions or name in case.evidence, f"{when} the import of {name} fails: {error}")
            case.expect(not early or name in case.evidence, f"{when} the import of {name} fails: {error}")
        _check_errors(case, leaf, f"{when}, tried again,", fixed=True)
        _check_outcome(case, leaf, when, "applied")
        _check_same(case, leaf["seen"], expected["seen"], when)
        for target, seen in leaf["seen"].items():
            same = shared.setdefault(target, seen["shared"]) == seen["shared"]
            case.expect(
                same, f"{when} {target} is shared by {seen['shared']}, in a different order by {shared[target]}"
            )
    case.expect(any(leaf["order"][0] == "dsfix" for leaf in leaves), "no order starts with dsfix")


def a_hand_edit_is_left_alone(case: Case) -> None:
    """With the patch's own edits in the file, the patch is already-fixed and changes nothing."""
    if len(case.edits) != len(case.patch.changes):
        raise NotApplicable("not all of its changes are source edits")
    edited = case.edited(case.id, telling=False)
    observed = case.look(copy=case.copied(edited), **case.on)
    when = "with its own edits in the source"
    _check_outcome(case, observed, when, "already-fixed")
    _check_errors(case, observed, when, fixed=True)
    for edit in case.edits:
        seen = observed["seen"][_place(edit)]
        lines = _codes(edited[edit.module], edit.qualname).get(seen["text"])
        case.expect(lines == seen["lines"], f"{when} {edit.target} differs from its file")


def it_can_be_reverted(case: Case) -> None:
    """dsfix.revert restores what is there without the patch."""
    (observed,) = case.run(["load", "dsfix", *case.modules], ["revert", case.id], ["look"], **case.on)
    _check_outcome(case, observed, "reverted", "disabled", reason="revert")
    _check_same(case, observed["seen"], shipped(case)["seen"], "reverted")


def _check_processes(case: Case, processes: _Processes, expected: Look) -> None:
    """`expected`: what is at the targets in a process that imports dsfix first."""
    mine = {place: expected[place] for place in map(_place, case.patch.changes)}
    by_pid = {report["pid"]: report for report in processes.reports}
    case.expect(len(by_pid) == len(processes.reports), "a process has written two reports")
    case.expect(not processes.partial, f"a report was left incomplete: {processes.partial}")
    for kind in _KINDS:
        process = processes.of(case, kind)
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
    paths = {"packages": str(_PROCESS.parent), "results": str(directory / "results")}
    job = {"modules": case.targets, "changes": case.changes, **paths}
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
    (observed,) = together.run(["load", "dsfix", *together.targets], ["look"], **together.on)
    return dict(observed)


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


CHECKS = (every_import_order, a_hand_edit_is_left_alone, it_can_be_reverted)
