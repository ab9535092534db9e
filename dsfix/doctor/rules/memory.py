"""Rules about memory, /dev/shm and disks."""

from __future__ import annotations

from collections.abc import Iterator

from ...rules import Match, note, warning
from ..facts import EnvironmentFacts

_MIB, _GIB = 1 << 20, 1 << 30
_SHM = 512 * _MIB  # DeepSpeed's own report warns below this
_DISK = _GIB  # enough to compile a few ops


@warning(
    (
        "start the container with --shm-size=1g or more, or --ipc=host; in Kubernetes, mount an emptyDir with "
        "medium Memory there"
    ),
    "https://docs.nvidia.com/deeplearning/sdk/nccl-archived/nccl_247/nccl-developer-guide/docs/troubleshooting.html",
    "get_shm_size in deepspeed/env_report.py of 0.19.8",
)
def shm_small(facts: EnvironmentFacts) -> Iterator[Match]:
    size = facts.memory.shm
    if size is not None and size < _SHM:
        yield Match("/dev/shm", f"/dev/shm has {size // _MIB} MiB: NCCL and data loader workers need more")


@warning(
    "set `ulimit -l unlimited` (docker run --ulimit memlock=-1; for all users in /etc/security/limits.conf)",
    "NVIDIA/nccl-tests#206",
)
def locked_memory_small(facts: EnvironmentFacts) -> Iterator[Match]:
    locked = facts.memory.locked
    if facts.infiniband and locked is not None and 0 <= locked < (facts.memory.usable or 0) // 2:
        yield Match(
            "ulimit -l",
            f"locked memory is limited to {locked // 1024} KiB: NCCL fails to register memory for InfiniBand "
            f"({', '.join(facts.infiniband)})",
        )


@note(
    "choose offload sizes that fit this limit, or raise it",
    "ran: memory.max of a control group compared with psutil.virtual_memory().total",
)
def memory_limited(facts: EnvironmentFacts) -> Iterator[Match]:
    total, limit = facts.memory.total, facts.memory.limit
    if total and limit and limit < 0.9 * total:
        yield Match(
            "memory",
            f"the control group allows {limit / _GIB:.0f} of the machine's {total / _GIB:.0f} GiB: a job that exceeds "
            "it is killed, although psutil and DeepSpeed's estimates see the machine's memory",
        )


@warning("free some space, or move TMPDIR and TORCH_EXTENSIONS_DIR to another disk")
def disk_full(facts: EnvironmentFacts) -> Iterator[Match]:
    disks = {**facts.disks, **({"compiled ops": facts.extensions.disk} if facts.extensions.disk else {})}
    for name, disk in disks.items():
        if disk.free is not None and disk.free < _DISK:
            yield Match("disk", f"{disk.path} ({name}) has {disk.free // _MIB} MiB free")
