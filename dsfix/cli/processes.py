"""What the commands need that start processes of their own."""

from __future__ import annotations

import os
import signal
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from .exits import BAD_USAGE, UNSEEN, Complaint


def require_temporary_directory() -> None:
    """Complaint where tempfile finds no place, or only the current directory, which is the user's."""
    named = [os.environ.get("TMPDIR"), os.environ.get("TEMP"), os.environ.get("TMP"), "/tmp", "/var/tmp", "/usr/tmp"]
    try:
        found = tempfile.gettempdir()
    except OSError:
        found = ""
    if os.path.abspath(found) not in [os.path.abspath(name) for name in named if name]:
        raise Complaint("no directory for temporary files can be written to: set TMPDIR to one", UNSEEN)


def require_same_packages(command: str) -> None:
    """Complaint where its processes would import another DeepSpeed, torch or dsfix than this process reports on."""
    from ..lab.errors import LabUnavailable
    from ..lab.isolation import origins

    packages = ("deepspeed", "torch", "dsfix")
    try:
        with tempfile.TemporaryDirectory(prefix="dsfix-") as scratch:
            there = origins(Path(scratch), *packages)
    except (LabUnavailable, OSError) as error:
        raise Complaint(str(error), UNSEEN) from None
    for package in packages:
        spec = find_spec(package)
        here = spec and spec.origin
        if os.path.realpath(here or "") != os.path.realpath(there[package] or ""):
            raise Complaint(
                f"here {package} is {here or 'not there'}, in a process started elsewhere it is "
                f"{there[package] or 'not there'}: run `python -m dsfix {command}` in another directory, without "
                "options of Python",
                BAD_USAGE,
            )


def be_kind() -> None:
    """Lowest priority; a batch system that ends the command gets the same clean end as Ctrl-C."""
    if hasattr(os, "nice"):
        os.nice(19)
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _interrupt)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt
