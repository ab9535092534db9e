"""Memory: the machine's, what a container may use of it, locked memory, /dev/shm."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from .files import lines, text

_UNLIMITED = 1 << 60  # cgroup v1 writes "no limit" as the largest number of pages


@dataclass(frozen=True)
class Memory:
    """All in bytes, None where it is unknown. `locked` is `ulimit -l`, -1 for unlimited.

    `limit` is what the control group allows, `limit_used` what it has used of that.
    """

    total: int | None = None
    available: int | None = None
    swap: int | None = None
    limit: int | None = None
    limit_used: int | None = None
    locked: int | None = None
    shm: int | None = None
    shm_free: int | None = None

    @property
    def usable(self) -> int | None:
        """What a job can have at most: the container's limit or the machine's memory, whichever is less."""
        known = [each for each in (self.total, self.limit) if each is not None]
        return min(known) if known else None


def look(root: Path) -> Memory:
    facts = meminfo(text(root / "proc/meminfo"))
    limit, used = control_group(root)
    shm, shm_free = shared(root / "dev/shm")
    return Memory(
        total=facts.get("MemTotal", physical()),
        available=facts.get("MemAvailable"),
        swap=facts.get("SwapTotal"),
        limit=limit,
        limit_used=used,
        locked=locked(),
        shm=shm,
        shm_free=shm_free,
    )


def meminfo(content: str) -> dict[str, int]:
    """Name -> bytes."""
    found = re.findall(r"^(\w+):\s+(\d+) kB$", content, re.M)
    return {name: int(number) * 1024 for name, number in found}


def control_group(root: Path) -> tuple[int | None, int | None]:
    """The memory limit of this process's control group and what is used of it; the tightest of it and those above."""
    tightest: tuple[int | None, int | None] = (None, None)
    for line in lines(root / "proc/self/cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            tops, names = ["sys/fs/cgroup", "sys/fs/cgroup/unified"], ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            tops, names = ["sys/fs/cgroup/memory"], ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        for top in tops:
            for group in _upwards(path):
                limit = _number(root / top / group / names[0])
                if limit is not None and limit < _UNLIMITED and (tightest[0] is None or limit < tightest[0]):
                    tightest = limit, _number(root / top / group / names[1])
    return tightest


def _upwards(path: str) -> list[str]:
    """The group and all above it; in a container the path is the host's and only the last of these is there."""
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    return ["/".join(parts[:length]) for length in range(len(parts), -1, -1)]


def _number(path: Path) -> int | None:
    content = text(path).strip()
    return int(content) if content.isdecimal() else None


def locked() -> int | None:
    try:
        import resource

        soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    except (ImportError, AttributeError, OSError, ValueError):
        return None
    return -1 if soft == resource.RLIM_INFINITY else soft


def shared(path: Path) -> tuple[int | None, int | None]:
    """Size and free bytes of /dev/shm."""
    try:
        sizes = os.statvfs(path)
    except (OSError, AttributeError):
        return None, None
    return sizes.f_blocks * sizes.f_frsize, sizes.f_bavail * sizes.f_frsize


def physical() -> int | None:
    """Bytes of this machine's memory, None where it does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
