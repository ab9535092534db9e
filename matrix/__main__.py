"""``python -m matrix COMMAND`` in a checkout: prove the patches' version ranges. Run it through tox."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path

from dsfix.cli.exits import INTERRUPTED, TROUBLE, CommandError
from dsfix.lab.distributions import LabUnavailable
from matrix import add, configkeys, docs, edges, known_bug_rows, run_proof, source_proof, toxini
from matrix.bystanders import command as bystanders
from matrix.changed import command as changed
from matrix.deepspeed_tests import command as deepspeed_tests
from matrix.gpu import command as gpu
from matrix.parts import command as parts
from matrix.site import command as site

# each has NAME, HELP, add_arguments(parser) and run(options) -> exit status
COMMANDS = (
    *(source_proof, run_proof, edges, docs, add, changed, toxini, configkeys),
    *(parts, bystanders, deepspeed_tests, known_bug_rows, gpu, site),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m matrix", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in COMMANDS:
        command = commands.add_parser(module.NAME, help=module.HELP, description=module.HELP)
        module.add_arguments(command)
        command.set_defaults(command=module.run)
    options = parser.parse_args()
    for name in ("SKIP", "ONLY", "ALSO", "SEVERITY", "DISABLE"):  # a proof covers all patches
        os.environ.pop(f"DSFIX_{name}", None)
    try:
        _check_installed()
        status: int = options.command(options)
    except CommandError as complaint:
        print(f"matrix: {complaint}", file=sys.stderr)
        return complaint.status
    except (OSError, LabUnavailable) as error:
        print(f"matrix: {error}", file=sys.stderr)
        return TROUBLE
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


def _check_installed() -> None:
    """Raises CommandError if the patches of the imported dsfix differ from this checkout's."""
    checkout = Path(__file__).resolve().parents[1] / "patches"
    [imported] = importlib.import_module("dsfix.patches").__path__
    if _sources(checkout) != _sources(Path(imported)):
        raise CommandError(
            f"the patches of dsfix in {sys.executable} differ from {checkout}: run `pip install -e .` in this checkout"
        )


def _sources(directory: Path) -> dict[str, str]:
    return {str(path.relative_to(directory)): path.read_text(encoding="utf-8") for path in directory.rglob("*.py")}


if __name__ == "__main__":
    sys.exit(main())
