"""`gpu`: create a folder that a machine with a GPU and no package index can run, or record its results."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from dsfix.cli.exits import OK
from matrix.gpu import folder, results

NAME = "gpu"
HELP = "create a folder that a machine with a GPU and no package index can run, or record its results"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("folder", nargs="?", type=Path, default=Path("gpu"), help="default: gpu")
    command.add_argument(
        "--python",
        type=_python,
        default=folder.this_python(),
        metavar="X.Y",
        help="that machine's Python (default: this one's, %(default)s)",
    )
    command.add_argument("--read", type=Path, metavar="RESULT", help="record a result.json instead")


def _python(text: str) -> str:
    if not re.fullmatch(r"3\.\d+", text):
        raise argparse.ArgumentTypeError(f"must be like 3.12, got {text!r}")
    return text


def run(options: argparse.Namespace) -> int:
    """Always 0. Raises CommandError."""
    if options.read:
        found = results.load(options.read)
        print(*found.lines, sep="\n")
        recorded = results.record(found)
        if found.column:
            print(f"{recorded} cells were recorded as {found.column}. Next: python -m tox run -e pages")
        else:
            print("Nothing was recorded: the folder ran on the emulated device.")
        return OK
    size = folder.make(options.folder, options.python)
    print(f"{options.folder}: {size / 1e6:.1f} MB, for Python {options.python}. There: python3 {options.folder}/run.py")
    return OK
