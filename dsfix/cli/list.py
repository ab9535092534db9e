"""`list`: what applies to this environment and why; with `--job`, what the processes of a job did."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..engine import registry, survey, versions
from ..engine.outcome import Outcome
from ..engine.verdict import Verdict
from ..patch import Patch, Severity
from . import require
from .exits import OK, TROUBLE, Complaint
from .printing import jobs, output

NAME = "list"
HELP = "what applies to the installed DeepSpeed and why; imports neither torch nor DeepSpeed"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--job", type=Path, metavar="DIR", help="a job's DSFIX_REPORT directory: what its processes did"
    )


def run(options: argparse.Namespace) -> int:
    return jobs.run(options.job, options.json) if options.job is not None else _environment(options.json)


def _environment(as_json: bool) -> int:
    try:
        require.require_deepspeed()
    except Complaint as complaint:
        return require.refused(complaint, as_json)
    found = survey.verdicts()
    catalogue = registry.catalogue()
    if as_json:
        patches = [
            {
                "id": patch_id,
                "title": catalogue[patch_id].patch.title,
                "severity": catalogue[patch_id].patch.severity.value,
                "outcome": verdict.outcome.value,
                "reason": verdict.reason,
                "distribution": catalogue[patch_id].distribution,
            }
            for patch_id, verdict in found.items()
        ]
        output.print_json({"distributions": survey.distributions(), "patches": patches})
    else:
        print(survey.heading())
        rows = [
            (
                (patch_id, _word(verdict.outcome), _why(catalogue[patch_id].patch, verdict) + _origin(patch_id)),
                output.style(verdict.outcome),
            )
            for patch_id, verdict in sorted(found.items(), key=_place)
        ]
        output.print_table(("patch", "here", "why"), rows)
        print(_advice([verdict.outcome for verdict in found.values()]))
    return TROUBLE if any(verdict.outcome.trouble for verdict in found.values()) else OK


def _place(listed: tuple[str, Verdict]) -> tuple[bool, bool, int, str]:
    """Trouble first, then what applies, both by severity, then what stays out."""
    patch_id, verdict = listed
    outcome, severity = verdict.outcome, registry.catalogue()[patch_id].patch.severity
    return not outcome.trouble, outcome is not Outcome.PENDING, list(Severity).index(severity), patch_id


def _word(outcome: Outcome) -> str:
    return "applies" if outcome is Outcome.PENDING else outcome.value


def _why(patch: Patch, verdict: Verdict) -> str:
    if verdict.outcome is Outcome.NOT_AFFECTED:
        return verdict.reason
    reason = verdict.reason
    if verdict.outcome is Outcome.PENDING:  # which functions are changed, `show` tells
        claim = ", ".join(f"{name} {specifiers}" for name, specifiers in patch.affects.items())
        reason = f"{reason.partition(': ')[0]}; for {claim}"
    return f"{patch.severity.value}: {patch.title}\n{reason}"


def _origin(patch_id: str) -> str:
    """A line about a patch that is not dsfix's own, or ""."""
    distribution = registry.catalogue()[patch_id].distribution
    if distribution not in registry.plugin_distributions():
        return ""
    return f"\nfrom {versions.described(distribution) or distribution}"


def _advice(outcomes: list[Outcome]) -> str:
    applies = outcomes.count(Outcome.PENDING)
    trouble = sum(outcome.trouble for outcome in outcomes)
    lines = [f"{applies} of {len(outcomes)} patches apply here."]
    if applies:
        lines.append("Put `import dsfix` on the first line of the script; `python -m dsfix diff` shows the change.")
    if trouble:
        lines.append(f"{trouble} in trouble: `python -m dsfix show ID` tells the story of one.")
    return "\n".join(lines)
