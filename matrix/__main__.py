"""``python -m matrix COMMAND`` in a checkout: the proofs of the patches' version ranges. Run it through tox."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path

from dsfix.cli.exits import INTERRUPTED, TROUBLE, Complaint
from matrix import add, configkeys, docs, edges, run_proof, source_proof, toxini
from matrix.bystanders import command as bystanders
from matrix.sweep import command as sweep
from matrix.upstream import command as upstream

# each has NAME, HELP, add_arguments(parser) and run(options) -> exit status, as the commands in dsfix/cli
COMMANDS = (source_proof, run_proof, edges, docs, add, toxini, configkeys, sweep, bystanders, upstream)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m matrix", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in COMMANDS:
        command = commands.add_parser(module.NAME, help=module.HELP, description=module.HELP)
        module.add_arguments(command)
        command.set_defaults(command=module.run)
    options = parser.parse_args()
    for name in ("DSFIX_SKIP", "DSFIX_ONLY", "DSFIX_DISABLE"):  # a proof is about all patches
        os.environ.pop(name, None)
    try:
        _check_installed()
        status: int = options.command(options)
    except Complaint as complaint:
        print(f"matrix: {complaint}", file=sys.stderr)
        return complaint.status
    except OSError as error:
        print(f"matrix: {error}", file=sys.stderr)
        return TROUBLE
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


def _check_installed() -> None:
    """Complaint where the dsfix that is imported has other patches than this checkout."""
    here = Path(__file__).resolve().parents[1] / "patches"
    [there] = importlib.import_module("dsfix.patches").__path__
    if _sources(here) != _sources(Path(there)):
        raise Complaint(
            f"the dsfix of {sys.executable} has other patches than {here}: `pip install -e .` in this checkout"
        )


def _sources(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in directory.glob("*.py")}


if __name__ == "__main__":
    sys.exit(main())
