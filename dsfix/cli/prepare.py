"""What commands check and set up before their work."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Callable

from .. import survey, versions
from .exits import BAD_USAGE, NO_ANSWER, NO_DEEPSPEED, CommandError
from .printing import output


def number(least: int, most: int) -> Callable[[str], int]:
    """The type of an option that takes an integer from `least` to `most`."""

    def read(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"must be between {least} and {most}, got {text!r}")
        return int(text)

    return read


def require_deepspeed() -> None:
    """Raises CommandError if DeepSpeed is not installed, or only a part of it."""
    version = versions.installed("deepspeed")
    if version is None:
        raise CommandError(f"DeepSpeed is not installed for {sys.executable}: nothing to patch", NO_DEEPSPEED)
    # "": the one that is imported is not the installed one
    if version and versions.module_file("deepspeed.runtime") is None:
        raise CommandError(
            f"deepspeed {version} is registered as installed, but its package is missing or incomplete: reinstall it",
            NO_DEEPSPEED,
        )


def require_temporary_directory() -> None:
    """Raises CommandError if tempfile finds no directory, or only the current one, which is the user's."""
    named = [os.environ.get("TMPDIR"), os.environ.get("TEMP"), os.environ.get("TMP"), "/tmp", "/var/tmp", "/usr/tmp"]
    try:
        directory = tempfile.gettempdir()
    except OSError:
        directory = ""
    if os.path.abspath(directory) not in [os.path.abspath(name) for name in named if name]:
        raise CommandError("no writable directory for temporary files: set TMPDIR to one", NO_ANSWER)


def require_same_packages(command: str) -> None:
    """Raises CommandError if child processes would import a different DeepSpeed, torch or dsfix."""
    from ..lab.distributions import LabUnavailable
    from ..lab.isolation import origins

    packages = ("deepspeed", "torch", "dsfix")
    try:
        with tempfile.TemporaryDirectory(prefix="dsfix-") as scratch:
            there = origins(Path(scratch), *packages)
    except (LabUnavailable, OSError) as error:
        raise CommandError(str(error), NO_ANSWER) from None
    for package in packages:
        spec = find_spec(package)
        here = spec and spec.origin
        if os.path.realpath(here or "") != os.path.realpath(there[package] or ""):
            raise CommandError(
                f"{package} is {here or 'not found'} in this process, but {there[package] or 'not found'} in a process "
                f"started elsewhere: run `python -m dsfix {command}` in a different directory, without Python "
                "options",
                BAD_USAGE,
            )


def report_refusal(complaint: CommandError, as_json: bool) -> int:
    """Prints the complaint as JSON and returns its exit status; raises it if JSON was not requested."""
    if not as_json:
        raise complaint
    output.print_json({"error": str(complaint), "distributions": survey.distributions(), "patches": []})
    return complaint.status


def lower_priority() -> None:
    """Lowest scheduling priority; SIGTERM and SIGHUP, as from a batch system, end the command as Ctrl-C does."""
    if hasattr(os, "nice"):
        os.nice(19)
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
