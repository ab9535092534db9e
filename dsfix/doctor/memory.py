"""Memory: the machine's, the control group's limit, locked memory, /dev/shm."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from .files import lines, text

_UNLIMITED = 1 << 60  # cgroup v1 writes "no limit" as the largest number of pages


@dataclass(frozen=True)
class Memory:
    """Sizes in bytes, None if unknown. `locked` is `ulimit -l`, -1 for unlimited.

    `limit` is the control group's limit, `limit_used` its current usage.
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
        """The most a job can use: the smaller of the machine's memory and the control group's limit."""
        known = [each for each in (self.total, self.limit) if each is not None]
        return min(known) if known else None


def collect(root: Path) -> Memory:
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
    fields = re.findall(r"^(\w+):\s+(\d+) kB$", content, re.M)
    return {name: int(number) * 1024 for name, number in fields}


def control_group(root: Path) -> tuple[int | None, int | None]:
    """Returns the tightest memory limit of this process's control group and its parents, and the usage there."""
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
    """Returns the group and its parents; in a container the path is the host's, and only the last one exists."""
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
    try:
        sizes = os.statvfs(path)
    except (OSError, AttributeError):
        return None, None
    return sizes.f_blocks * sizes.f_frsize, sizes.f_bavail * sizes.f_frsize


def physical() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
