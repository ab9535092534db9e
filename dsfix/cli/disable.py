"""`disable`: removes the file that `enable` wrote."""

from __future__ import annotations

import argparse
import sys

from ..start import pth
from .exits import OK, TROUBLE, CommandError
from .printing import output

NAME = "disable"
HELP = "undo `enable`"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.epilog = "exit status: 0 dsfix is no longer enabled; 1 another environment's file still enables it"


def run(options: argparse.Namespace) -> int:
    file = pth.destination()
    try:
        file.unlink()
        removed = True
    except FileNotFoundError:
        removed = False
    except OSError as error:
        raise CommandError(f"{file} cannot be removed: {error.strerror or error}") from None
    others = pth.installed_files()
    if options.json:
        paths = {"file": str(file), "others": list(map(str, others))}
        output.print_json({"enabled": bool(others), "changed": removed, **paths})
    else:
        more, what = (" any more", "was removed") if removed else ("", "does not exist")
        enabled = "" if others else f"dsfix is not enabled for {sys.executable}{more}: "
        print(f"{enabled}{file} {what}")
        for other in others:
            print(f"dsfix is still enabled by {other}: run `python -m dsfix disable` with the Python it belongs to")
    return TROUBLE if others else OK
