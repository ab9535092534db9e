"""Reading what may not be there, may not be readable, or may never end."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_MOST = 1 << 20  # bytes
_NETWORK = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "afs", "9p", "fuse.sshfs")


@dataclass(frozen=True)
class Disk:
    """The file system of a path. Sizes in bytes, None where they cannot be had; `type` is "" where it is unknown."""

    path: str
    free: int | None = None
    total: int | None = None
    type: str = ""
    writable: bool = True

    @property
    def network(self) -> bool:
        return self.type.startswith(_NETWORK)


def text(path: Path) -> str:
    """The beginning of a file, "" where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(_MOST).decode(errors="replace")
    except (OSError, ValueError):
        return ""


def lines(path: Path) -> list[str]:
    return text(path).splitlines()


def disk(path: Path, root: Path) -> Disk:
    """The file system that `path` is on, or would be on once it exists."""
    there = _nearest(path)
    kind = type_of(there, root)
    try:
        writable = os.access(there, os.W_OK)
        sizes = os.statvfs(there)
    except (OSError, AttributeError):  # Windows has no statvfs
        return Disk(str(path), type=kind)
    return Disk(str(path), sizes.f_bavail * sizes.f_frsize, sizes.f_blocks * sizes.f_frsize, kind, writable)


def type_of(path: Path, root: Path) -> str:
    """The type of the file system that holds a path, by /proc/mounts; "" where that is not there."""
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
    """The path, or the nearest directory above it that exists."""
    path = Path(os.path.abspath(path))
    for each in (path, *path.parents):
        try:
            if each.exists():
                return Path(os.path.realpath(each))
        except OSError:
            continue
    return path
