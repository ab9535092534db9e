"""Processes that tests start."""

import contextlib
import os
import select
import subprocess
from pathlib import Path


def ended(command, cwd, env, **options):
    """Runs a command to its end, whatever its status; returns it with its output, which is text."""
    given = {"capture_output": True, "text": True, "timeout": 600, "check": False, **options}
    return subprocess.run([str(each) for each in command], cwd=cwd, env=env, **given)


def without_dsfix(**variables):
    """The variables of this process without dsfix's, except for its cache directory, and these."""
    kept = (name for name in os.environ if name == "DSFIX_CACHE" or not name.startswith(("DSFIX_", "_DSFIX_")))
    return {**{name: os.environ[name] for name in kept}, **variables}


@contextlib.contextmanager
def forked(device="cuda"):
    """Yields a function (script, arguments) -> command that forks a process from one that has imported torch.

    It needs the variables of `to_fork`.
    """
    from dsfix.audit.trial import ranks  # not installed in the environment `package`

    with ranks(device) as command:
        yield lambda script, *arguments: [*command("script"), *map(str, (script, *arguments))]


def to_fork(**variables):
    """These variables, and what a forked process needs."""
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent / "forked"), os.environ.get("PYTHONPATH")]))
    return {**variables, "PYTHONPATH": path}


class Fifo:
    """Shows when all its writers have started, and when all are dead."""

    def __init__(self, path):
        os.mkfifo(path)
        self.path = str(path)
        self.end = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def read(self, count):
        """`count` bytes, or fewer if all writers are dead."""
        data = b""
        while len(data) < count:
            assert select.select([self.end], [], [], 60)[0], "writers neither write nor die"
            chunk = os.read(self.end, 1)
            if not chunk:
                break
            data += chunk
        return data

    def all_dead(self):
        return bool(select.select([self.end], [], [], 30)[0]) and self.read(1) == b""
