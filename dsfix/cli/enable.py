"""`enable`: writes a .pth file that loads dsfix whenever this environment's Python imports DeepSpeed."""

from __future__ import annotations

import argparse
import sys

from ..start import pth
from .exits import OK, CommandError
from .printing import output

NAME = "enable"
HELP = "enable dsfix in every process of this environment's Python through a .pth file; no script is edited"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.epilog = "A Python started with -S is not affected."


def run(options: argparse.Namespace) -> int:
    file = pth.destination()
    try:
        written = pth.write(file)
    except OSError as error:
        raise CommandError(
            f"{file} cannot be written: {error.strerror or error}; use a virtual environment, or start the job with "
            "`python -m dsfix run`"
        ) from None
    if options.json:
        output.print_json({"enabled": True, "file": str(file), "changed": written})
    else:
        print(f"dsfix is {'now' if written else 'already'} enabled for {sys.executable} by {file}")
    return OK
