"""``python matrix COMMAND`` in a checkout: the proofs of the patches' version ranges. Run it through tox."""

from __future__ import annotations

import argparse
import sys

import add
import docs
import edges
import run
import source
import toxini
from dsfix.cli.status import INTERRUPTED, Complaint

# each has NAME, HELP, add_arguments(parser) and run(options) -> exit status, as the commands in dsfix/cli
COMMANDS = (source, run, edges, docs, add, toxini)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python matrix", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in COMMANDS:
        command = commands.add_parser(module.NAME, help=module.HELP, description=module.HELP)
        module.add_arguments(command)
        command.set_defaults(command=module.run)
    options = parser.parse_args()
    try:
        status: int = options.command(options)
    except Complaint as complaint:
        print(f"matrix: {complaint}", file=sys.stderr)
        return complaint.status
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


if __name__ == "__main__":
    sys.exit(main())
