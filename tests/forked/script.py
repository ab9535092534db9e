"""Runs a script in a process that was forked from one that has imported torch; `tests.processes.forked` starts it."""

import runpy
import sys
from pathlib import Path


def main(script, *arguments):
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")
    return 0
