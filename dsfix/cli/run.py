"""`run`: a command, and all Python processes below it, with dsfix."""

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
from .exits import NOT_EXECUTABLE, NOT_FOUND, Complaint

NAME = "run"
HELP = "run a command with dsfix in it and in all Python processes below it; no script is edited"
JSON = False  # what is printed is the command's


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.usage = "python -m dsfix run CMD ..."
    command.add_argument("words", nargs=argparse.REMAINDER, metavar="CMD ...", help="the command and its arguments")
    command.epilog = (
        "Each Python below CMD imports dsfix when it first imports DeepSpeed. It does not reach one that is started "
        "with -I, -E or -S, or with a PYTHONPATH that replaces the one it would inherit. exit status: CMD's; 126 CMD "
        "cannot be executed; 127 CMD is not found"
    )


def run(options: argparse.Namespace) -> int:
    words: list[str] = options.words[1:] if options.words[:1] == ["--"] else options.words
    if not words:
        raise Complaint("run needs a command, as in `python -m dsfix run torchrun --nproc_per_node 2 train.py`")
    environment = with_dsfix(os.environ)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    if os.name != "posix":
        return _beside(words, environment)
    _instead(words, environment)


def with_dsfix(environment: Mapping[str, str]) -> dict[str, str]:
    """The same environment, with the directory of dsfix's sitecustomize first on PYTHONPATH, once."""
    if os.pathsep in DIRECTORY:
        raise Complaint(f"{DIRECTORY} cannot stand on PYTHONPATH, whose entries are separated by {os.pathsep!r}")
    changed = dict(environment)
    path = changed.get("PYTHONPATH", "")
    if DIRECTORY not in path.split(os.pathsep):
        changed["PYTHONPATH"] = f"{DIRECTORY}{os.pathsep}{path}" if path else DIRECTORY
    if _coerced(environment):
        del changed["LC_CTYPE"]
    return changed


def _coerced(environment: Mapping[str, str]) -> bool:
    """Whether it was this Python that set LC_CTYPE, as it does in the C locale (PEP 538)."""
    try:
        original = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return "LC_CTYPE" in environment and not any(each.startswith(b"LC_CTYPE=") for each in original)


def _instead(words: list[str], environment: dict[str, str]) -> NoReturn:
    """The command takes this process's place: signals and the exit status are its own."""
    for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores them, and what it executes would, too
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        try:
            os.execvpe(words[0], words, environment)
        except OSError as error:
            file = shutil.which(words[0])
            if error.errno != errno.ENOEXEC or file is None:
                raise
            os.execve("/bin/sh", ["sh", file, *words[1:]], environment)  # without #!: a shell executes it itself
    except OSError as error:
        raise _complaint(words[0], error) from None


def _beside(words: list[str], environment: dict[str, str]) -> int:
    """Windows has no exec: the exit status is handed on."""
    file = shutil.which(words[0]) or words[0]  # Windows itself looks for .exe only, and not for deepspeed.bat
    try:
        process = subprocess.Popen([file, *words[1:]], env=environment)
    except OSError as error:
        raise _complaint(words[0], error) from None
    while True:
        try:
            status = process.wait()
            return status - 2**32 if status >= 2**31 else status  # sys.exit takes no more than 31 bits there
        except KeyboardInterrupt:  # the command has got it, too
            continue


def _complaint(command: str, error: OSError) -> Complaint:
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return Complaint(f"{command}: cannot be executed: {error.strerror or error}", NOT_EXECUTABLE)
    if shutil.which(command) is not None:
        return Complaint(
            f"{command}: cannot be executed: the interpreter that its first line names is missing", NOT_EXECUTABLE
        )
    sentence = f"{command}: command not found"
    if not os.path.dirname(command):
        beside = shutil.which(command, path=os.path.dirname(sys.executable))
        if beside is not None:
            sentence += f"; {beside} is not on PATH"
        elif os.path.isfile(command):
            sentence += f"; a script in this directory is run by `python {command}`"
    return Complaint(sentence, NOT_FOUND)
