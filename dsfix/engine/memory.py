"""What was learned of the installed source, kept from one process to the next.

Reading, parsing and compiling are most of what dsfix costs. A verdict is kept with the time and size of every file that
it was read from, new code with the code in whose place it is put: what is no longer the same is looked at again.
"""

from __future__ import annotations

import contextlib
import hashlib
import marshal
import os
import sys
import time
from importlib.machinery import PathFinder
from importlib.util import MAGIC_NUMBER
from operator import itemgetter
from pathlib import Path
from types import CodeType
from typing import Callable

from ..patch import Change, Edit, Patch, Source
from .cache import cache_directory
from .outcome import Outcome, Refused
from .source import module_file

_INSTALLATIONS = 16  # files that are kept, of some 500 kB; the one written longest ago goes
_PATIENCE = 60  # seconds, after which a file that another process has begun to write is nobody's
_DIGEST = 16  # bytes


class Memory:
    """One file per installation of DeepSpeed, dsfix and Python, in the cache directory.

    A file that is missing, damaged or not this user's is an empty memory; so is every file where there is no directory
    to write to. Nothing of this raises.
    """

    def __init__(self) -> None:
        self._path: Path | None = None
        self._refusals: dict[bytes, tuple[str, str] | None] = {}
        self._codes: dict[bytes, tuple[CodeType, CodeType]] = {}
        self._loaded = self._new = False

    def refusal(self, patch: Patch, find: Callable[[Patch], Refused | None]) -> Refused | None:
        """What `find` says of the patch, or said of it with the same files."""
        key = _judged(patch)
        if key is None:
            return find(patch)
        self._load()
        if key not in self._refusals:
            refused = find(patch)
            self._refusals[key] = None if refused is None else (refused.outcome.value, refused.reason)
            self._new = True
            return refused
        kept = self._refusals[key]
        return None if kept is None else Refused(Outcome(kept[0]), kept[1])

    def code(self, original: CodeType, edits: list[tuple[str, Edit]], make: Callable[[], CodeType]) -> CodeType:
        """What `make` makes of `original` with these edits (patch id, edit), or made of an equal one."""
        self._load()
        named = [(patch_id, _declared(edit)) for patch_id, edit in sorted(edits, key=itemgetter(0))]
        key = _digest(original.co_filename, original.co_name, original.co_firstlineno, named)
        kept = self._codes.get(key)
        if kept is not None and kept[0] == original:
            return kept[1]
        new = make()
        self._codes[key] = original, new
        self._new = True
        return new

    def save(self) -> None:
        """Writes what is new, whole or not at all."""
        if not self._new or self._path is None:
            return
        self._new = False
        partial = self._path.with_suffix(".partial")
        with contextlib.suppress(OSError, ValueError):  # it is only slower without
            content = marshal.dumps((dict(self._refusals), dict(self._codes)))
            partial.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _remove_if_left_behind(partial)
            with open(partial, "xb", opener=_private) as file:  # else another process is writing the same
                try:
                    file.write(hashlib.blake2b(content, digest_size=_DIGEST).digest() + content)
                    file.close()
                    os.replace(partial, self._path)
                except BaseException:
                    partial.unlink()
                    raise
            _forget_the_oldest(self._path.parent)

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True
        with contextlib.suppress(OSError, RuntimeError, ValueError, EOFError, TypeError):
            self._path = _path()
            with open(self._path, "rb") as file:
                if not _is_ours(os.fstat(file.fileno())):
                    return
                digest, content = file.read(_DIGEST), file.read()
            if hashlib.blake2b(content, digest_size=_DIGEST).digest() == digest:  # marshal may crash on anything else
                self._refusals, self._codes = marshal.loads(content)


def _path() -> Path:
    """Another file for whatever decides what is learned, beyond the source that is looked at."""
    package = os.path.dirname(__file__)
    with os.scandir(package) as entries:
        own = sorted((each.name, *_stamp(each.stat())) for each in entries if each.name.endswith(".py"))
    python = (MAGIC_NUMBER, sys.version, sys.flags.optimize)
    deepspeed = PathFinder.find_spec("deepspeed")  # not all finders: one of them is dsfix's
    where = deepspeed and deepspeed.origin
    return cache_directory().absolute() / f"learned-{_digest(package, own, python, where).hex()}.bin"


def _judged(patch: Patch) -> bytes | None:
    """The key of what the source says of a patch: its declarations, and the files that they are about."""
    declared: tuple[Change | Source, ...] = (*patch.changes, *patch.present, *patch.fixed)
    files = []
    for module in sorted({each.module for each in declared}):
        path = module_file(module)
        if path is None:
            return None
        try:
            files.append((path, *_stamp(os.stat(path))))
        except OSError:
            return None
    kinds = len(patch.changes), len(patch.present)
    return _digest(files, kinds, [_declared(each) for each in declared])


def _declared(each: Change | Source) -> tuple[object, ...]:
    texts = [value for name, value in vars(each).items() if not callable(value) and name != "uses"]
    return type(each).__name__, *texts, getattr(each, "written", "")


def _stamp(status: os.stat_result) -> tuple[int, int]:
    return status.st_mtime_ns, status.st_size


def _digest(*parts: object) -> bytes:
    return hashlib.blake2b(repr(parts).encode(errors="surrogatepass"), digest_size=_DIGEST).digest()


def _is_ours(status: os.stat_result) -> bool:
    """Whether nobody but this user, or root, can have written the file: its code will be run."""
    return not hasattr(os, "geteuid") or (status.st_uid in (0, os.geteuid()) and not status.st_mode & 0o022)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _remove_if_left_behind(partial: Path) -> None:
    """By a process that was killed while it wrote."""
    with contextlib.suppress(FileNotFoundError):
        if time.time() - partial.stat().st_mtime > _PATIENCE:
            partial.unlink()


def _forget_the_oldest(directory: Path) -> None:
    files = list(directory.glob("learned-*.bin"))
    for old in sorted(files, key=lambda each: each.stat().st_mtime)[:-_INSTALLATIONS]:
        old.unlink()
