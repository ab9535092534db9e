"""`list`: which patches apply to the installed DeepSpeed, or to another release; with `--job`, what they did in the
processes of a job; with `--upstream`, which of the known bugs a release has."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packaging.version import Version

from .. import survey, versions
from ..catalogue import registry
from ..engine.verdict import Verdict
from ..job import Job
from ..outcome import Outcome
from ..patch import Patch, Severity
from ..settings import Settings
from ..upstream import releases, table
from ..upstream.coverage import specifiers
from . import prepare
from .exits import OK, TROUBLE, UNSEEN, Complaint
from .printing import job_reports, output, upstream

NAME = "list"
HELP = "which patches apply to the installed DeepSpeed, and why; imports neither torch nor DeepSpeed"
_SEVERITIES = [each.value for each in Severity]


def add_arguments(command: argparse.ArgumentParser) -> None:
    what = command.add_mutually_exclusive_group()
    what.add_argument(
        "--config", metavar="FILE", help="only patches whose bug this DeepSpeed config, or accelerate's YAML, meets"
    )
    what.add_argument(
        "--job", type=Path, metavar="DIR", help="what the patches did in a job, from its DSFIX_REPORT directory"
    )
    what.add_argument(
        "--upstream", action="store_true", help="the known bugs of the release instead, and what dsfix has for each"
    )
    command.add_argument("--deepspeed", metavar="VERSION", help="answer for this release (default: the installed one)")
    command.add_argument(
        "--severity", type=_severities, metavar="NAME,…", help=f"only these, of {', '.join(_SEVERITIES)}"
    )
    command.add_argument("--verbose", action="store_true", help="a table with the reasons, also of what has no effect")


def _severities(text: str) -> list[str]:
    names = text.lower().split(",")
    for name in names:
        if name not in _SEVERITIES:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(_SEVERITIES)}")
    return names


def run(options: argparse.Namespace) -> int:
    if options.job is not None:
        if options.severity or options.deepspeed is not None:
            raise Complaint("--job goes with neither --severity nor --deepspeed")
        return job_reports.run(options.job, options.verbose, options.json)
    try:
        if options.deepspeed is not None:
            release, heading = _named(options.deepspeed)
            verdicts = {each.id: _by_number(each, release) for each in registry.catalogue().values()}
        else:
            prepare.require_deepspeed()
            heading = survey.heading()
            if options.upstream:
                release, heading = _installed(heading)
            else:
                verdicts = survey.verdicts()
        if options.upstream:
            return upstream.run(release, heading, options)
        listed, remark = _chosen(verdicts, options)
    except Complaint as complaint:
        return prepare.refused(complaint, options.json)
    if options.json:
        output.print_json({"distributions": survey.distributions(), "patches": _as_json(listed)})
    else:
        output.say(heading)
        _print(listed, remark, options)
    return TROUBLE if any(verdict.outcome.trouble for verdict in listed.values()) else OK


def _named(text: str) -> tuple[Version, str]:
    """The release of that name, and the heading."""
    try:
        release = releases.named(text, table.load())
    except releases.UnknownRelease as error:
        raise Complaint(str(error)) from None
    return release, f"deepspeed {release}, by its number alone: the installed source decides in a job"


def _installed(heading: str) -> tuple[Version, str]:
    """The release whose known bugs the installed DeepSpeed has, and the heading."""
    try:
        release, remark = releases.installed(versions.installed("deepspeed") or "", table.load())
    except releases.UnknownRelease as error:
        raise Complaint(str(error), UNSEEN) from None
    return release, f"{heading} ({remark})" if remark else heading


def _by_number(entry: registry.Entry, release: Version) -> Verdict:
    patch = entry.patch
    why = Settings.read().disabled(entry.id, patch.default, patch.severity.value)
    if why is not None:
        return Verdict(Outcome.DISABLED, why)
    affected = specifiers(patch.affects.get("deepspeed", "")).contains(release)
    return Verdict(Outcome.PENDING if affected else Outcome.NOT_AFFECTED, f"deepspeed {release}")


def _chosen(verdicts: Mapping[str, Verdict], options: argparse.Namespace) -> tuple[dict[str, Verdict], str]:
    """The patches of the severities, for bugs that the config meets; and a sentence on what the config leaves open."""
    catalogue = registry.catalogue()
    wanted = options.severity or _SEVERITIES
    listed = {name: each for name, each in verdicts.items() if catalogue[name].patch.severity.value in wanted}
    if options.config is None:
        return listed, ""
    from ..check.checking import check

    try:
        job = check(options.config, deepspeed=options.deepspeed).facts.job
    except ValueError as error:
        raise Complaint(str(error)) from None
    met = {name: each for name, each in listed.items() if _meets(catalogue[name].patch, job)}
    unknown = sum(
        each.outcome is Outcome.PENDING and catalogue[name].patch.config is None for name, each in listed.items()
    )
    return met, f"{unknown} more apply to bugs of which a config shows nothing: `python -m dsfix list` has them."


def _meets(patch: Patch, job: Job) -> bool:
    try:
        return patch.config is not None and patch.config(job)
    except Exception:  # of a value that DeepSpeed rejects
        return False


def _as_json(listed: Mapping[str, Verdict]) -> list[dict[str, Any]]:
    catalogue = registry.catalogue()
    return [
        {
            "id": patch_id,
            "title": catalogue[patch_id].patch.title,
            "severity": catalogue[patch_id].patch.severity.value,
            "outcome": verdict.outcome.value,
            "reason": verdict.reason,
            "distribution": catalogue[patch_id].distribution,
        }
        for patch_id, verdict in listed.items()
    ]


def _print(listed: Mapping[str, Verdict], remark: str, options: argparse.Namespace) -> None:
    applying = [name for name, each in listed.items() if each.outcome is Outcome.PENDING]
    trouble = [name for name, each in listed.items() if each.outcome.trouble]
    counts = Counter(_severity(name) for name in applying)
    told = ", ".join(f"{counts[each]} {each}" for each in _SEVERITIES if counts[each])
    what = f"patches for bugs that {options.config} meets" if options.config else "patches"
    output.say(f"{len(applying)} of {len(listed)} {what} apply{': ' if told else ''}{told}")
    if remark:
        output.say(remark)
    rest = output.counted(each.outcome for name, each in listed.items() if name not in applying)
    if rest:
        print(f"{rest}{'' if options.verbose else ': `--verbose` shows the reasons'}")
    if options.verbose:
        rows = [
            ((name, output.word(each.outcome), _why(name, each)), output.style(each.outcome))
            for name, each in sorted(listed.items(), key=_place)
        ]
        output.print_table(("patch", "here", "why"), rows)
    else:
        output.print_lines(
            [
                *(("in trouble", name, f"{listed[name].outcome.value}: {listed[name].reason}") for name in trouble),
                *(
                    (_severity(name), name, registry.catalogue()[name].patch.title)
                    for name in sorted(applying, key=_worst)
                ),
            ]
        )
    if applying or trouble:
        use = "Put `import dsfix` on the first line of the script. " if applying else ""
        print()
        output.say(f"{use}`python -m dsfix show ID` explains a patch.")


def _severity(patch_id: str) -> str:
    return registry.catalogue()[patch_id].patch.severity.value


def _worst(patch_id: str) -> tuple[int, str]:
    return _SEVERITIES.index(_severity(patch_id)), patch_id


def _place(listed: tuple[str, Verdict]) -> tuple[bool, bool, int, str]:
    """In trouble first, then what applies, then the rest; each by severity."""
    patch_id, (outcome, _) = listed
    return not outcome.trouble, outcome is not Outcome.PENDING, *_worst(patch_id)


def _why(patch_id: str, verdict: Verdict) -> str:
    entry = registry.catalogue()[patch_id]
    lines = [f"{_severity(patch_id)}: {entry.patch.title}", verdict.reason]
    if verdict.outcome is Outcome.PENDING:
        affects = ", ".join(f"{name} {specifiers}" for name, specifiers in entry.patch.affects.items())
        lines[1] = f"{verdict.reason.partition(': ')[0]}; affects {affects}"  # `show` lists the changed functions
    if entry.distribution in registry.plugin_distributions():
        lines.append(f"from {versions.described(entry.distribution) or entry.distribution}")
    return "\n".join(lines)
