"""The command line: parse the arguments, run one command, return its exit status."""

from __future__ import annotations

import argparse
import io
import os
import sys
import textwrap
from collections.abc import Sequence

from .. import __version__
from ..catalogue import registry
from ..catalogue.day import PROVEN_ON
from ..outcome import UnknownPatch, did_you_mean
from ..settings import Settings
from ..versions import NEWEST_PROVEN
from . import audit, check, diff, disable, doctor, enable, explain, find, run, show, verify
from . import list as list_command
from . import status as status_command
from .exits import BAD_USAGE, INTERRUPTED, OK, STATUSES, CommandError

_COMMANDS = (
    *(list_command, show, find, explain, check, doctor, diff, verify, audit),
    *(run, enable, disable, status_command),
)
_WIDTH = 100  # columns of the statuses in the help text


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status; errors go to standard error, one sentence each."""
    if sys.stdout is None:  # closed by the caller
        sys.stdout = io.StringIO()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if unknown := _unknown(argv):
        print(f"dsfix: {unknown}", file=sys.stderr)
        return BAD_USAGE
    options, more = parser().parse_known_args(argv or ["--help"])
    if more:  # as in `check A --plain B`, where argparse ends the files at the option
        several = next((value for name, value in vars(options).items() if name in ("files", "ids", "words")), None)
        if several is None or any(each.startswith("-") for each in more):
            parser().error(f"unrecognized arguments: {' '.join(more)}")
        several += more
    entries, broken = registry.load()
    for complaint in (*Settings.read().complaints_about(entries), *broken):
        print(f"dsfix: {complaint}", file=sys.stderr)
    try:
        if not entries:
            raise CommandError("no patches are installed")
        status: int = options.command(options)
        sys.stdout.flush()
        return status
    except (CommandError, UnknownPatch) as complaint:
        print(f"dsfix: {complaint}", file=sys.stderr)
        return complaint.status if isinstance(complaint, CommandError) else BAD_USAGE
    except KeyboardInterrupt:
        print("dsfix: interrupted", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # flushing at exit would fail again
        if isinstance(error, BrokenPipeError):  # the reader is gone; `verify` and `audit` have set the status
            return int(getattr(options, "status", OK))
        print(f"dsfix: standard output cannot be written: {error.strerror}", file=sys.stderr)
        return BAD_USAGE


def _unknown(given: Sequence[str]) -> str:
    names = [module.NAME for module in _COMMANDS]
    if not given or given[0].startswith("-") or given[0] in names:
        return ""
    hint = did_you_mean(given[0].lower(), names, "; `python -m dsfix` lists all commands")
    return f"unknown command {given[0]!r}{hint}"


def _about() -> str:
    """For reports and papers: which dsfix, and which state of its catalogue."""
    catalogue = f"{len(registry.load()[0])} patches of {PROVEN_ON}"
    return f"dsfix {__version__}, {catalogue}, proven through DeepSpeed {NEWEST_PROVEN}"


def _status(number: int, meaning: str) -> str:
    return textwrap.fill(meaning, _WIDTH, initial_indent=f"  {number:<4} ", subsequent_indent=" " * 7)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m dsfix",
        description="Inspect and control the patches that dsfix applies to the installed DeepSpeed.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(["exit status:", *(_status(*each) for each in STATUSES.items())]),
    )
    top.add_argument("--version", action="version", version=_about())
    commands = top.add_subparsers(required=True, metavar="COMMAND", title="commands")
    for module in _COMMANDS:
        command = commands.add_parser(
            module.NAME, help=module.HELP, description=f"{module.HELP[0].upper()}{module.HELP[1:]}."
        )
        if getattr(module, "JSON", True):
            command.add_argument("--json", action="store_true", help="print JSON")
        module.add_arguments(command)
        command.set_defaults(command=module.run)
    return top
