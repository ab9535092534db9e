"""`explain [FILE…]`: which known faults logs or tracebacks show, which of them is the cause, and what helps."""

from __future__ import annotations

import argparse
import sys

from .exits import BAD_USAGE, OK, UNSEEN
from .printing import output

NAME = "explain"
HELP = "which known fault a log or a traceback shows, and what helps"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "files", metavar="FILE", nargs="*", default=["-"], help="logs, of any size, gzip too; - or none: standard input"
    )


def run(options: argparse.Namespace) -> int:
    """What can be read is read; a file that cannot is named, and is the exit status."""
    from ..explain.ranking import ranked
    from ..explain.recognise import Reading
    from .printing import findings

    reading = Reading()
    for name in dict.fromkeys(options.files):
        if name == "-" and sys.stdin is not None and sys.stdin.isatty():
            print("dsfix: reading standard input, up to Ctrl-D", file=sys.stderr)
        reading.read(name)
    for file in reading.files:
        if complaint := findings.complaint(file):
            print(f"dsfix: {complaint}", file=sys.stderr)
    found = ranked(reading)
    if options.json:
        output.print_json(findings.as_json(reading, found))
    elif found:
        findings.print_findings(reading, found)
    if any(file.trouble for file in reading.files):
        return BAD_USAGE
    if reading.known:
        return OK
    if not options.json:
        print(findings.nothing(reading.files))
    return UNSEEN
