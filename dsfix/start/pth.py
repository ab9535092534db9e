"""The .pth file by which every start of an environment's Python watches for DeepSpeed: where it is, writing it."""

from __future__ import annotations

import os
import site
import sysconfig
from pathlib import Path

from . import DIRECTORY

NAME = "dsfix.pth"
# what the file names may have been uninstalled since
_PROGRAM = """\
sys.path.insert(0, {directory!a})
try: import _dsfix_start
except ImportError: pass
finally: sys.path.remove({directory!a})
"""


def text() -> str:
    """The file's content: one line that Python executes. ASCII only, for before 3.13 the locale says what it is."""
    return f"import sys; exec({_PROGRAM.format(directory=DIRECTORY)!a})\n"


def destination() -> Path:
    """The file for the running Python: where dsfix is among the user's own packages, it goes there, too."""
    users = os.path.abspath(site.getusersitepackages())
    if site.ENABLE_USER_SITE and DIRECTORY.startswith(users + os.sep):
        return Path(users, NAME)
    return Path(sysconfig.get_path("purelib"), NAME)


def found() -> list[Path]:
    """The files that the running Python executes at its start."""
    users = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    files = [Path(directory, NAME) for directory in dict.fromkeys([*users, *site.getsitepackages()])]
    return [file for file in files if file.is_file()]


def write(file: Path) -> bool:
    """Writes it, whole or not at all; False where it says the same already. Raises OSError."""
    if file.is_file() and file.read_bytes() == text().encode("ascii"):
        return False
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text(), encoding="ascii")
        os.replace(partial, file)
    finally:
        partial.unlink(missing_ok=True)
    return True
