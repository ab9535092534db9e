"""Reads files and file systems that may be missing, unreadable or endless."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_MAX_BYTES = 1 << 20
_NETWORK = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "afs", "9p", "fuse.sshfs")


@dataclass(frozen=True)
class Disk:
    """The file system of a path. Sizes are in bytes, None if unknown; `type` is "" if unknown."""

    path: str
    free: int | None = None
    total: int | None = None
    type: str = ""
    writable: bool = True

    @property
    def network(self) -> bool:
        return self.type.startswith(_NETWORK)


def text(path: Path) -> str:
    """Returns the start of a file, "" if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(_MAX_BYTES).decode(errors="replace")
    except (OSError, ValueError):
        return ""


def lines(path: Path) -> list[str]:
    return text(path).splitlines()


def names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def disk(path: Path, root: Path) -> Disk:
    """Returns the file system that `path` is on, or would be on if it existed."""
    existing = _nearest(path)
    kind = type_of(existing, root)
    try:
        writable = os.access(existing, os.W_OK)
        sizes = os.statvfs(existing)
    except (OSError, AttributeError):  # Windows has no statvfs
        return Disk(str(path), type=kind)
    return Disk(str(path), sizes.f_bavail * sizes.f_frsize, sizes.f_blocks * sizes.f_frsize, kind, writable)


def type_of(path: Path, root: Path) -> str:
    best, kind = "", ""
    for line in lines(root / "proc/mounts"):
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        mount = fields[1].replace("\\040", " ")
        inside = mount == "/" or str(path) == mount or str(path).startswith(mount + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, fields[2]
    return kind


def _nearest(path: Path) -> Path:
    path = Path(os.path.abspath(path))
    for each in (path, *path.parents):
        try:
            if each.exists():
                return Path(os.path.realpath(each))
        except OSError:
            continue
    return path
