"""`doctor`: shows the environment, its problems and how to fix them, worst first."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .. import rules
from ..rules import Finding, Level
from .exits import NO_DEEPSPEED, OK, TROUBLE
from .printing import output

if TYPE_CHECKING:
    from ..doctor.facts import EnvironmentFacts

NAME = "doctor"
HELP = "show this environment, from the GPU driver to the patches, and what to fix, worst first"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = (
        f"{HELP[0].upper()}{HELP[1:]}. Runs torch, DeepSpeed and nvidia-smi in separate processes with time limits, so "
        "that broken ones are reported. Changes nothing."
    )
    command.epilog = (
        "exit status: 0 no error found; 1 an error was found; 2 the command line is invalid; 3 DeepSpeed is not "
        "installed or incomplete (the page is still printed)"
    )


def run(options: argparse.Namespace) -> int:
    from ..doctor.facts import collect
    from .printing.doctor_page import page

    facts = collect()
    findings = rules.findings(rules.load("dsfix.doctor.rules"), facts, facts.versions)
    if options.json:
        output.print_json(as_json(facts, findings))
    else:
        output.print_rows(page(facts), 15)
        print()
        for line in advice(findings):
            print(line)
    if not facts.deepspeed_usable:
        return NO_DEEPSPEED
    return TROUBLE if any(finding.level is Level.ERROR for finding in findings) else OK


def as_json(facts: EnvironmentFacts, found: list[Finding]) -> dict[str, object]:
    return {
        "findings": [finding.as_json() for finding in found],
        "environment": facts.as_json(),
        "patches": {
            patch_id: {"outcome": verdict.outcome.value, "reason": verdict.reason}
            for patch_id, verdict in facts.verdicts.items()
        },
    }


def advice(found: list[Finding]) -> Iterator[str]:
    """Yields the findings and their remedies as lines, worst first."""
    if not found:
        yield "No problems found."
        return
    yield "What to fix, worst first:"
    for number, finding in enumerate(found, 1):
        head = f"{number:>2}. {finding.level.value}: "
        yield from output.wrapped(finding.what, head, "    ")
        yield from output.wrapped(finding.remedy, "    → " if output.encodes("→") else "    -> ", "      ")
    yield from output.wrapped("`python -m dsfix doctor --json` prints all details; attach them to a support request.")
