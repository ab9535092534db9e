"""`status`: whether `enable` or `run` has enabled dsfix for this environment's Python."""

from __future__ import annotations

import argparse
import os
import platform
import sys

from .. import __version__
from ..settings import Settings
from ..start import DIRECTORY, pth
from .exits import OK, TROUBLE
from .printing import output

NAME = "status"
HELP = "show whether and by which file dsfix is enabled for this environment's Python, and dsfix's version and path"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.epilog = "exit status: 0 enabled or not; 1 a file exists that should enable dsfix but does not"


def run(options: argparse.Namespace) -> int:
    files = pth.installed_files()
    below_run = DIRECTORY in os.environ.get("PYTHONPATH", "").split(os.pathsep)
    enabled = "_dsfix_start" in sys.modules  # the file acts on this process too
    disabled = Settings.read().disable
    if options.json:
        output.print_json(
            {
                "enabled": enabled,
                "files": [str(file) for file in files],
                "run": below_run,
                "disabled": disabled,
                "dsfix": __version__,
                "directory": os.path.dirname(DIRECTORY),
                "python": sys.executable,
            }
        )
    else:
        where = f"{sys.executable} (Python {platform.python_version()})"
        print(f"dsfix {__version__} in {os.path.dirname(DIRECTORY)}: {'' if enabled else 'not '}enabled for {where}")
        for file in files:
            print(f"by {file}" if enabled else f"{file} has no effect: the directory it names is gone")
        if below_run:
            print("by PYTHONPATH, set by `python -m dsfix run`")
        if not enabled:
            print("`python -m dsfix enable` enables it")
        if disabled:
            print("DSFIX_DISABLE is set: no patch is applied")
    return TROUBLE if files and not enabled else OK
