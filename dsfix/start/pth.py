"""The .pth file that loads `_dsfix_start` whenever the environment's Python starts: finding and writing it."""

from __future__ import annotations

import os
import site
import sysconfig
from pathlib import Path

from ..settings import write_atomically
from . import DIRECTORY

NAME = "dsfix.pth"
# dsfix may have been uninstalled since the file was written
_PROGRAM = """\
sys.path.insert(0, {directory!a})
try: import _dsfix_start
except ImportError: pass
finally: sys.path.remove({directory!a})
"""


def text() -> str:
    """The file's content: one line that Python executes. ASCII: before 3.13 it is read in the locale's encoding."""
    return f"import sys; exec({_PROGRAM.format(directory=DIRECTORY)!a})\n"


def destination() -> Path:
    """The file for the running Python: in the user site if dsfix is installed there, else in site-packages."""
    user_site = os.path.abspath(site.getusersitepackages())
    if site.ENABLE_USER_SITE and DIRECTORY.startswith(user_site + os.sep):
        return Path(user_site, NAME)
    return Path(sysconfig.get_path("purelib"), NAME)


def installed_files() -> list[Path]:
    """The files that the running Python executes at start-up."""
    user_site = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    files = [Path(directory, NAME) for directory in dict.fromkeys([*user_site, *site.getsitepackages()])]
    return [file for file in files if file.is_file()]


def write(file: Path) -> bool:
    """Writes the file atomically; returns False if it is up to date. Raises OSError."""
    if file.is_file() and file.read_bytes() == text().encode("ascii"):
        return False
    write_atomically(file, text().encode("ascii"))
    return True
