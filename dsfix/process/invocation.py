"""How this process was started: `python -m dsfix`, and the script `dsfix`, are no job."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path


def is_command_line() -> bool:
    """Whether this process is `python -m dsfix` or its console script, where nothing is patched or reported."""
    started = "".join(getattr(sys, "argv", [])[:1])
    if started != "-m":
        return os.path.basename(started) in ("dsfix", "dsfix.exe")
    arguments = getattr(sys, "orig_argv", None) or _command()  # Python 3.9 has none
    for number, argument in enumerate(arguments[1:], 1):
        option = re.match(r"-[bBdEiIOPqsSuvx]*m(.*)", argument)
        if option is not None:
            return (option[1] or "".join(arguments[number + 1 : number + 2])) == "dsfix"
    return False


def _command() -> list[str]:
    try:
        return Path("/proc/self/cmdline").read_text(encoding="utf-8", errors="replace").split("\0")
    except OSError:
        return []
