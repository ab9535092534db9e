"""`list`: which patches apply to this environment and why; with `--job`, what they did in the processes of a job; with
`--deepspeed` and `--upstream`, which are for another release, and which of the known bugs a release has."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from .. import survey, versions
from ..catalogue import registry
from ..engine.verdict import Verdict
from ..outcome import Outcome
from ..patch import Patch, Severity
from ..upstream import releases, table
from . import prepare
from .exits import OK, TROUBLE, UNSEEN, Complaint
from .printing import job_reports, output

NAME = "list"
HELP = "which patches apply to the installed DeepSpeed, and why; imports neither torch nor DeepSpeed"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--all", action="store_true", help="list the patches that have no effect too")
    command.add_argument(
        "--job", type=Path, metavar="DIR", help="what the patches did in a job, from its DSFIX_REPORT directory"
    )
    command.add_argument(
        "--upstream", action="store_true", help="the known bugs of the release instead, and what dsfix has for each"
    )
    command.add_argument("--deepspeed", metavar="VERSION", help="answer for this release (default: the installed one)")


def run(options: argparse.Namespace) -> int:
    if options.job is not None:
        if options.upstream or options.deepspeed is not None:
            raise Complaint("--job goes with neither --upstream nor --deepspeed")
        return job_reports.run(options.job, options.all, options.json)
    if options.deepspeed is not None:
        return _of_release(options)
    try:
        prepare.require_deepspeed()
    except Complaint as complaint:
        return prepare.refused(complaint, options.json)
    if options.upstream:
        return _upstream_here(options)
    verdicts = survey.verdicts()
    if options.json:
        _print_json(verdicts)
    else:
        _print(verdicts, options.all)
    return TROUBLE if any(verdict.outcome.trouble for verdict in verdicts.values()) else OK


def _of_release(options: argparse.Namespace) -> int:
    """Of a release that need not be installed."""
    from .printing import other_release, upstream

    try:
        release = releases.named(options.deepspeed, table.load())
    except releases.UnknownRelease as error:
        return prepare.refused(Complaint(str(error)), options.json)
    entries = registry.catalogue()
    patches, bugs = other_release.of(release, entries), upstream.of(release, entries)
    if options.json:
        told = {"upstream": upstream.as_json(bugs)} if options.upstream else {}
        output.print_json({"deepspeed": str(release), "patches": other_release.as_json(patches), **told})
        return OK
    command = f"python -m dsfix list --deepspeed {release}"
    print(f"deepspeed {release}: {upstream.summary(bugs)}")
    if options.upstream:
        upstream.show(bugs, options.all, f"{command} --upstream")
    else:
        other_release.show(patches)
        print(f"`{command} --upstream` lists the bugs.")
    return OK


def _upstream_here(options: argparse.Namespace) -> int:
    """The known bugs of the installed release."""
    from .printing import upstream

    try:
        release, remark = releases.installed(versions.installed("deepspeed") or "", table.load())
    except releases.UnknownRelease as error:
        return prepare.refused(Complaint(str(error), UNSEEN), options.json)
    bugs = upstream.of(release, registry.catalogue())
    if options.json:
        told = {"deepspeed": str(release), "remark": remark, "upstream": upstream.as_json(bugs)}
        output.print_json({"distributions": survey.distributions(), **told})
        return OK
    print(f"{survey.heading()}{f' ({remark})' if remark else ''}\n{upstream.summary(bugs)}")
    upstream.show(bugs, options.all, "python -m dsfix list --upstream")
    return OK


def _print_json(verdicts: Mapping[str, Verdict]) -> None:
    catalogue = registry.catalogue()
    patches = [
        {
            "id": patch_id,
            "title": catalogue[patch_id].patch.title,
            "severity": catalogue[patch_id].patch.severity.value,
            "outcome": verdict.outcome.value,
            "reason": verdict.reason,
            "distribution": catalogue[patch_id].distribution,
        }
        for patch_id, verdict in verdicts.items()
    ]
    output.print_json({"distributions": survey.distributions(), "patches": patches})


def _print(verdicts: Mapping[str, Verdict], everything: bool) -> None:
    print(survey.heading())
    listed = {patch_id: each for patch_id, each in verdicts.items() if everything or _matters(each.outcome)}
    if listed:
        rows = [
            ((patch_id, output.word(verdict.outcome), _why(patch_id, verdict)), output.style(verdict.outcome))
            for patch_id, verdict in sorted(listed.items(), key=_place)
        ]
        output.print_table(("patch", "here", "why"), rows)
    rest = {patch_id: each.outcome for patch_id, each in verdicts.items() if patch_id not in listed}
    output.print_rest(rest, "python -m dsfix list --all")
    print("\n".join(_advice([verdict.outcome for verdict in verdicts.values()])))


def _matters(outcome: Outcome) -> bool:
    return outcome.trouble or outcome is Outcome.PENDING


def _place(listed: tuple[str, Verdict]) -> tuple[bool, bool, int, str]:
    """In trouble first, then what applies, then the rest; each by severity."""
    patch_id, verdict = listed
    outcome, severity = verdict.outcome, registry.catalogue()[patch_id].patch.severity
    return not outcome.trouble, outcome is not Outcome.PENDING, list(Severity).index(severity), patch_id


def _why(patch_id: str, verdict: Verdict) -> str:
    entry = registry.catalogue()[patch_id]
    lines = [_reason(entry.patch, verdict)]
    if verdict.outcome is not Outcome.NOT_AFFECTED:
        lines.insert(0, f"{entry.patch.severity.value}: {entry.patch.title}")
    if entry.distribution in registry.plugin_distributions():
        lines.append(f"from {versions.described(entry.distribution) or entry.distribution}")
    return "\n".join(lines)


def _reason(patch: Patch, verdict: Verdict) -> str:
    if verdict.outcome is not Outcome.PENDING:
        return verdict.reason
    affects = ", ".join(f"{name} {specifiers}" for name, specifiers in patch.affects.items())
    return f"{verdict.reason.partition(': ')[0]}; affects {affects}"  # `show` lists the changed functions


def _advice(outcomes: list[Outcome]) -> list[str]:
    applying = outcomes.count(Outcome.PENDING)
    trouble = sum(outcome.trouble for outcome in outcomes)
    lines = [f"{applying} of {len(outcomes)} patches apply here."]
    if applying:
        lines.append("Put `import dsfix` on the first line of the script; `python -m dsfix diff` shows the changes.")
    if trouble:
        lines.append(f"{trouble} in trouble: `python -m dsfix show ID` explains a patch.")
    return lines
