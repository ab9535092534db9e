"""Processes that tests start."""

import os
import subprocess


def ended(command, cwd, env, **options):
    """Runs a command to its end, whatever its status; returns it with its output, which is text."""
    given = {"capture_output": True, "text": True, "timeout": 600, "check": False, **options}
    return subprocess.run([str(each) for each in command], cwd=cwd, env=env, **given)


def without_dsfix(**variables):
    """The variables of this process but those of dsfix, and these."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("DSFIX_", "_DSFIX_"))}
    return {**inherited, **variables}
