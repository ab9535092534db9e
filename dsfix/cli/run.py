"""`run`: runs a command with dsfix in every Python process that it starts."""

from __future__ import annotations

import argparse
import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from ..start import DIRECTORY
from .exits import NOT_EXECUTABLE, NOT_FOUND, CommandError

NAME = "run"
HELP = "run a command with dsfix in every Python process that it starts, without editing scripts"
JSON = False  # the output belongs to the command


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.usage = "python -m dsfix run CMD ..."
    command.add_argument("words", nargs=argparse.REMAINDER, metavar="CMD ...", help="the command and its arguments")
    command.epilog = (
        "Each Python process that CMD starts imports dsfix when it first imports DeepSpeed, unless it is started with "
        "-I, -E or -S, or with a PYTHONPATH that replaces the inherited one. Exit status: CMD's own; 126 if CMD cannot "
        "be executed, 127 if it was not found."
    )


def run(options: argparse.Namespace) -> int:
    words: list[str] = options.words[1:] if options.words[:1] == ["--"] else options.words
    if not words:
        raise CommandError(
            "run needs a command, for example `python -m dsfix run torchrun --nproc_per_node 2 train.py`"
        )
    environment = with_dsfix(os.environ)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    if os.name != "posix":
        return _as_child(words, environment)
    _replace_process(words, environment)


def with_dsfix(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with the directory of dsfix's sitecustomize first on PYTHONPATH, once.

    Raises CommandError if the directory cannot be on PYTHONPATH.
    """
    if os.pathsep in DIRECTORY:
        raise CommandError(f"{DIRECTORY} cannot be put on PYTHONPATH, because it contains the separator {os.pathsep!r}")
    changed = dict(environment)
    path = changed.get("PYTHONPATH", "")
    if DIRECTORY not in path.split(os.pathsep):
        changed["PYTHONPATH"] = f"{DIRECTORY}{os.pathsep}{path}" if path else DIRECTORY
    if _coerced(environment):
        del changed["LC_CTYPE"]
    return changed


def _coerced(environment: Mapping[str, str]) -> bool:
    """Whether this Python itself set LC_CTYPE, as it does in the C locale (PEP 538)."""
    try:
        original = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return "LC_CTYPE" in environment and not any(each.startswith(b"LC_CTYPE=") for each in original)


def _replace_process(words: list[str], environment: dict[str, str]) -> NoReturn:
    """Executes the command in this process, so that signals and the exit status are its own."""
    for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores them, and the command would inherit that
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        try:
            os.execvpe(words[0], words, environment)
        except OSError as error:
            file = shutil.which(words[0])
            if error.errno != errno.ENOEXEC or file is None:
                raise
            os.execve("/bin/sh", ["sh", file, *words[1:]], environment)  # a script without #!
    except OSError as error:
        raise _complaint(words[0], error) from None


def _as_child(words: list[str], environment: dict[str, str]) -> int:
    """For Windows, which has no exec: runs the command in a child process and returns its exit status."""
    file = shutil.which(words[0]) or words[0]  # Windows itself finds .exe files only, not deepspeed.bat
    try:
        process = subprocess.Popen([file, *words[1:]], env=environment)
    except OSError as error:
        raise _complaint(words[0], error) from None
    while True:
        try:
            status = process.wait()
            return status - 2**32 if status >= 2**31 else status  # sys.exit takes at most 31 bits there
        except KeyboardInterrupt:  # the command receives it too
            continue


def _complaint(command: str, error: OSError) -> CommandError:
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return CommandError(f"{command}: cannot be executed: {error.strerror or error}", NOT_EXECUTABLE)
    if shutil.which(command) is not None:
        return CommandError(
            f"{command}: cannot be executed: the interpreter named in its first line is missing", NOT_EXECUTABLE
        )
    sentence = f"{command}: command not found"
    if not os.path.dirname(command):
        executable = shutil.which(command, path=os.path.dirname(sys.executable))
        if executable is not None:
            sentence += f"; {executable} is not on PATH"
        elif os.path.isfile(command):
            sentence += f"; run a script in this directory with `python {command}`"
    return CommandError(sentence, NOT_FOUND)
