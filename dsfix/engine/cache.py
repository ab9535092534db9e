"""A cache of verdicts and compiled code, shared between processes.

Reading, parsing and compiling are most of what dsfix costs. Entries that depend on files have the files' times and
sizes in their key, and compiled code is stored with the code that it replaces, so changes are detected.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import marshal
import os
import sys
import time
from collections.abc import Iterable
from importlib.machinery import PathFinder
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from types import CodeType
from typing import Any, Callable, cast

from .. import versions
from ..patch import Edit
from ..settings import cache_directory

_INSTALLATIONS = 16  # files kept, about 500 kB each; the oldest is deleted first
_STALE_AFTER = 60  # seconds after which an unfinished file is considered abandoned
_DIGEST = 16  # bytes


class Cache:
    """One file per installation of DeepSpeed, dsfix and Python, in the cache directory.

    A file that is missing, damaged or not this user's counts as an empty cache; so does one in a directory that cannot
    be written. Nothing here raises.
    """

    def __init__(self) -> None:
        self._path: Path | None = None
        self._new = False

    def cached(self, key: object, make: Callable[[], Any], valid: Callable[[Any], bool] = lambda entry: True) -> Any:
        """What `make` returned for this key before, if still valid; else what it returns now, marshal permitting."""
        key_digest = digest(key)
        entry = self._entries.get(key_digest)
        if entry is None or not valid(entry[0]):
            entry = self._entries[key_digest] = (make(),)
            self._new = True
        return entry[0]

    def gate(self, key: object, make: Callable[[], Any]) -> Any:
        """Like `cached`, for version gates (one key per patch), stored together and found without a digest."""
        gates = self._entries.setdefault(b"gates", ({},))[0]
        if key not in gates:
            gates[key], self._new = make(), True
        return gates[key]

    def code(self, original: CodeType, edits: list[tuple[str, Edit]], make: Callable[[], CodeType]) -> CodeType:
        """The code that `make` compiles from `original` with these edits (patch id, edit), now or for an equal one."""
        declared = [(patch_id, declaration_key(edit)) for patch_id, edit in edits]
        key = (original.co_filename, original.co_name, original.co_firstlineno, declared)
        codes = self.cached(("code", key), lambda: (original, make()), lambda codes: codes[0] == original)
        return cast(CodeType, codes[1])

    def save(self) -> None:
        """Writes new entries atomically."""
        if not self._new or self._path is None:
            return
        self._new = False
        partial = self._path.with_suffix(".partial")
        with contextlib.suppress(OSError, ValueError):  # without the file, the next process is only slower
            content = marshal.dumps(dict(self._entries))
            partial.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # left by a process that was killed
                if time.time() - partial.stat().st_mtime > _STALE_AFTER:
                    partial.unlink()
            # "x" fails if another process is writing the same file
            with open(partial, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                try:
                    file.write(hashlib.blake2b(content, digest_size=_DIGEST).digest() + content)
                    file.close()
                    os.replace(partial, self._path)
                except BaseException:
                    partial.unlink()
                    raise
            files = sorted(partial.parent.glob("learned-*.bin"), key=lambda each: each.stat().st_mtime)
            for old in files[:-_INSTALLATIONS]:
                old.unlink()

    @functools.cached_property
    def _entries(self) -> dict[bytes, tuple[Any]]:
        with contextlib.suppress(OSError, RuntimeError, ValueError, EOFError, TypeError):
            self._path = _path()
            with open(self._path, "rb") as file:
                status = os.fstat(file.fileno())
                # only this user or root can have written the file, whose code will be run
                ours = not hasattr(os, "geteuid") or (status.st_uid in (0, os.geteuid()) and not status.st_mode & 0o022)
                digest, content = file.read(_DIGEST), file.read()
            if ours and hashlib.blake2b(content, digest_size=_DIGEST).digest() == digest:  # marshal may crash otherwise
                return dict(marshal.loads(content))
        return {}


def declaration_key(change: object) -> tuple[object, ...]:
    """A change or a piece of evidence as part of a key: its strings and numbers, and where its helpers are defined."""
    plain = {name: value for name, value in vars(change).items() if isinstance(value, (str, int, type(None)))}
    if isinstance(change, Edit):
        plain["code"] = change.code_with_imports
    return type(change).__name__, *plain.values()


def file_stamps(paths: Iterable[str]) -> list[tuple[str, int, int]]:
    """(path, time, size) of each file, as part of a key. Raises OSError."""
    return [(path, status.st_mtime_ns, status.st_size) for path in paths for status in [os.stat(path)]]


def _path() -> Path:
    """The cache file; its name covers what else entries depend on: dsfix's own code, Python and the DeepSpeed found."""
    own = sorted(entry.path for entry in os.scandir(os.path.dirname(__file__)) if entry.name.endswith(".py"))
    own += [versions.__file__, os.path.join(os.path.dirname(versions.__file__), "patch.py")]  # which writes the calls
    spec = PathFinder.find_spec("deepspeed")  # not all finders: one of them is dsfix's
    key = (file_stamps(own), MAGIC_NUMBER, sys.version, sys.flags.optimize, spec and spec.origin)
    path = cache_directory().absolute() / f"learned-{digest(key).hex()}.bin"
    with contextlib.suppress(OSError, AttributeError):
        if os.stat(path).st_uid not in (0, os.geteuid()):  # the directory is shared
            return path.with_name(f"{path.stem}-{os.geteuid()}.bin")
    return path


def digest(key: object) -> bytes:
    """Of anything whose repr is the same in each process."""
    return hashlib.blake2b(repr(key).encode(errors="surrogatepass"), digest_size=_DIGEST).digest()
