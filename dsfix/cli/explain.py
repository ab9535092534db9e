"""`explain [FILE…]`: recognises known problems in logs or tracebacks, and shows the remedy."""

from __future__ import annotations

import argparse
import sys

from .exits import BAD_USAGE, NO_ANSWER, OK
from .printing import output

NAME = "explain"
HELP = "recognise known problems in logs and tracebacks, and show the most likely cause and the remedy"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "files",
        metavar="FILE",
        nargs="*",
        default=["-"],
        help="log files, plain or gzip (default, or -: standard input)",
    )


def run(options: argparse.Namespace) -> int:
    """Reads what can be read; a file that cannot is reported and sets the exit status."""
    from ..explain.ranking import FindingRole, rank_findings
    from ..explain.recognise import LogReading
    from .printing import findings

    reading = LogReading()
    for name in dict.fromkeys(options.files):
        if name == "-" and sys.stdin is not None and sys.stdin.isatty():
            print("dsfix: reading standard input until Ctrl-D", file=sys.stderr)
        reading.read(name)
    for file in reading.files:
        if complaint := findings.complaint(file):
            print(f"dsfix: {complaint}", file=sys.stderr)
    ranked_findings = rank_findings(reading)
    if options.json:
        output.print_json(findings.as_json(reading, ranked_findings))
    else:
        if ranked_findings:
            findings.print_findings(reading, ranked_findings)
        if not reading.known and not any(file.trouble for file in reading.files):
            print(findings.nothing_found_message(reading.files))
    if any(file.trouble for file in reading.files):
        return BAD_USAGE
    recognised = any(
        ranked_finding.recognised.problem and ranked_finding.role is not FindingRole.EXCLUDED
        for ranked_finding in ranked_findings
    )
    return OK if recognised else NO_ANSWER
