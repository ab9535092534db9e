"""`list`: which patches apply to the installed DeepSpeed or a given release; with `--job`, what they did in the
processes of a job; with `--upstream`, which known bugs a release has."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from packaging.version import Version

from .. import survey, versions
from ..catalogue import registry
from ..catalogue.registry import Entry
from ..engine.verdict import Verdict
from ..known_bugs import table
from ..outcome import Outcome
from ..patch import Severity
from ..settings import Settings
from . import prepare
from .exits import BAD_USAGE, NO_ANSWER, OK, TROUBLE, CommandError
from .printing import job_reports, known_bugs, output

NAME = "list"
HELP = "list the patches that apply to the installed DeepSpeed, or its known bugs; imports neither torch nor DeepSpeed"
_SEVERITIES = [each.value for each in Severity]
_Listed = list[tuple[Entry, Verdict]]


def add_arguments(command: argparse.ArgumentParser) -> None:
    what = command.add_mutually_exclusive_group()
    what.add_argument(
        "--job", type=Path, metavar="DIR", help="show what the patches did in a job, from its DSFIX_REPORT directory"
    )
    what.add_argument(
        "--upstream", action="store_true", help="list the release's known bugs and how dsfix handles each"
    )
    command.add_argument("--deepspeed", metavar="VERSION", help="use this release (default: the installed one)")
    command.add_argument(
        "--severity", type=_severities, metavar="NAME,…", help=f"only these severities: {', '.join(_SEVERITIES)}"
    )
    command.add_argument(
        "--verbose", action="store_true", help="print a table with reasons, also of patches that do not apply"
    )


def _severities(text: str) -> list[str]:
    names = text.lower().split(",")
    for name in names:
        if name not in _SEVERITIES:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(_SEVERITIES)}")
    return names


def run(options: argparse.Namespace) -> int:
    if options.job is not None:
        if options.severity or options.deepspeed is not None:
            raise CommandError("--job cannot be combined with --severity or --deepspeed")
        return job_reports.run(options.job, options.verbose, options.json)
    release, remark = None, ""
    try:
        if options.deepspeed is not None:
            release = table.release_named(options.deepspeed, table.load())
            heading = f"deepspeed {release}, by version only; in a job the installed source decides"
        else:
            prepare.require_deepspeed()
            heading = survey.versions_line()
        if options.upstream:
            if release is None:
                release, remark = table.installed_release(versions.installed("deepspeed") or "", table.load())
            return known_bugs.run(release, f"{heading} ({remark})" if remark else heading, options)
        wanted, settings = options.severity or _SEVERITIES, Settings.read()
        entries = [entry for entry in registry.catalogue().values() if entry.patch.severity.value in wanted]
        listed = [(entry, _verdict(entry, release, settings)) for entry in entries]
    except table.UnknownRelease as error:
        return prepare.report_refusal(
            CommandError(str(error), NO_ANSWER if options.deepspeed is None else BAD_USAGE), options.json
        )
    except CommandError as complaint:
        return prepare.report_refusal(complaint, options.json)
    if options.json:
        output.print_json({"distributions": survey.distributions(), "patches": [_as_json(*each) for each in listed]})
    else:
        output.print_paragraph(heading)
        _print(listed, options.verbose)
    return TROUBLE if any(verdict.outcome.trouble for _, verdict in listed) else OK


def _verdict(entry: Entry, release: Version | None, settings: Settings) -> Verdict:
    """The verdict on the installed DeepSpeed, or by the version number of a release."""
    patch = entry.patch
    if release is None:
        return survey.verdict_of(entry, settings)
    why = settings.disabled(entry.id, patch.default, patch.severity.value)
    if why is not None:
        return Verdict(Outcome.DISABLED, why)
    return Verdict(Outcome.PENDING if patch.claims(str(release)) else Outcome.NOT_AFFECTED, f"deepspeed {release}")


def _as_json(entry: Entry, verdict: Verdict) -> dict[str, str]:
    return {
        "id": entry.id,
        "title": entry.patch.title,
        "severity": entry.patch.severity.value,
        "outcome": verdict.outcome.value,
        "reason": verdict.reason,
        "distribution": entry.distribution,
    }


def _print(listed: _Listed, verbose: bool) -> None:
    ordered = sorted(listed, key=_sort_key)
    counts = Counter(entry.patch.severity.value for entry, verdict in ordered if verdict.outcome is Outcome.PENDING)
    severity_counts = ", ".join(f"{number} {severity}" for severity, number in counts.items())
    output.print_paragraph(
        f"patches that apply: {sum(counts.values())} of {len(listed)}{f' ({severity_counts})' * bool(counts)}"
    )
    rest = output.count_summary(verdict.outcome for _, verdict in listed if verdict.outcome is not Outcome.PENDING)
    output.print_paragraph(f"{rest}: `--verbose` shows the reasons" if rest and not verbose else rest)
    if verbose:
        rows = [(each.id, output.outcome_label(verdict.outcome), _why(each, verdict)) for each, verdict in ordered]
        output.print_table(("patch", "here", "why"), rows)
    else:
        output.print_grouped(
            [_line(*each) for each in ordered if each[1].outcome is Outcome.PENDING or each[1].outcome.trouble]
        )
    use = "Put `import dsfix` on the first line of the script. " if counts else ""
    print()
    output.print_paragraph(f"{use}`python -m dsfix show ID` explains a patch.")


def _sort_key(listed: tuple[Entry, Verdict]) -> tuple[bool, bool, int, str]:
    """Sort key: in trouble first, then patches that apply, then the rest; each by severity."""
    entry, (outcome, _) = listed
    return not outcome.trouble, outcome is not Outcome.PENDING, _SEVERITIES.index(entry.patch.severity.value), entry.id


def _line(entry: Entry, verdict: Verdict) -> tuple[str, str, str]:
    if verdict.outcome.trouble:
        return "in trouble", entry.id, f"{verdict.outcome.value}: {verdict.reason}"
    return entry.patch.severity.value, entry.id, entry.patch.title


def _why(entry: Entry, verdict: Verdict) -> str:
    lines = [f"{entry.patch.severity.value}: {entry.patch.title}", verdict.reason]
    if verdict.outcome is Outcome.PENDING:
        affects = ", ".join(f"{name} {specifiers}" for name, specifiers in entry.patch.affects.items())
        lines[1] = f"{verdict.reason.partition(': ')[0]}; affects {affects}"  # `show` lists the changed functions
    if entry.distribution in registry.plugin_distributions():
        lines.append(f"from {versions.versions_text(entry.distribution) or entry.distribution}")
    return "\n".join(lines)
