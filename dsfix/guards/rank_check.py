"""Checks that all ranks run the same dsfix, DeepSpeed and torch with the same patches. No rank ever waits for another.

In init_distributed, which deepspeed.initialize, zero.Init and accelerate call before any collective, each rank
publishes a statement in the store of the process group's rendezvous and reads those already published, so the call
never blocks if only some ranks make it or they make it one by one. A difference is a warning there, and an error once
deepspeed.initialize has made an engine, whose collectives bring the ranks together.

torch's elastic agent may keep one store for all attempts of a job (https://github.com/pytorch/pytorch/issues/135712):
each attempt has its own keys, and a rank overwrites its own.
"""

from __future__ import annotations

import os
import socket
import sys
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .. import log
from ..outcome import shortened_list
from . import GuardError
from .statement import Group, Statement, differences

if TYPE_CHECKING:
    from .initialize import Call

_HOSTS = 3  # hosts that an error names
_ADVICE = (
    "Remedy: install the same packages and set the same DSFIX_ variables on all hosts; "
    "DSFIX_RANK_CHECK=0 on all ranks disables this check"
)
_published: Any = None  # a weak reference to the process group in which this rank has published its statement


class RankError(GuardError):
    """The ranks of the job differ; the message names them, their hosts and the differences."""


def after(call: Call, result: Any) -> None:
    """Publishes this rank's statement once and compares all published ones. result: deepspeed.initialize's tuple.
    Raises RankError: the ranks of the created engine differ."""
    global _published
    distributed: Any = sys.modules.get("torch.distributed")  # DeepSpeed imports it in a distributed job
    if distributed is None or not call.settings.rank_check or not distributed.is_initialized():
        return
    group = distributed.group.WORLD
    store = distributed.distributed_c10d._get_default_store()  # torch has no public function for it
    if store is None or distributed.get_world_size() == 1 or distributed.get_backend() == "fake":  # MPI has no store
        return
    kept = distributed.PrefixStore(f"dsfix {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    board = StatementStore(kept, distributed.get_rank(), distributed.get_world_size())
    first = _published is None or _published() is not group
    if first:
        board.publish(Statement.of_this_process())
        _published = weakref.ref(group)
    differences = board.differences()
    if isinstance(result, tuple):
        if differences:
            raise RankError(f"{differences}\n{_ADVICE}")
        silent = board.silent() if board.rank == 0 and getattr(result[0], "dp_world_size", 0) == board.size else []
        if silent:
            late = "has not reported: it is slow, or runs without dsfix."
            if len(silent) > 1:
                late = "have not reported: they are slow, or run without dsfix."
            log.warn_repeatedly("ranks", f"{_ranks(silent)} {late} {_ADVICE}")
    elif differences and first:
        log.warn(f"{differences}\n{_ADVICE}")


class StatementStore:
    """The statements of all ranks; `store` is a torch.distributed.Store that nothing else uses. Nothing here waits."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self.store, self.rank, self.size = store, rank, size

    def publish(self, mine: Statement) -> None:
        self.store.set(f"statement {mine.digest}", mine.to_json())
        self.store.set(f"rank {self.rank}", f"{mine.digest} {socket.gethostname()}")
        if self.store.add(f"ranks {mine.digest}", 1) == 1:
            self.store.add("digests", 1)
        self.store.add("ranks", 1)

    def differences(self) -> str:
        """The differences between the ranks that have published, as text, "" if there are none."""
        if self.store.add("digests", 0) == 1:  # the usual case costs one request, however many ranks there are
            return ""
        hosts: dict[int, str] = {}
        ranks: dict[str, list[int]] = {}
        for rank in (rank for rank in range(self.size) if self.store.check([f"rank {rank}"])):
            digest, hosts[rank] = self._get(f"rank {rank}").split()
            ranks.setdefault(digest, []).append(rank)
        groups: list[Group] = [
            (where, Statement.from_json(self._get(f"statement {each}"))) for each, where in ranks.items()
        ]
        lines = [f"  {_named(where, hosts)}: {'; '.join(what)}" for where, what in differences(groups).items()]
        return "\n".join(["the ranks of this job differ, and would hang or diverge:", *lines] if lines else [])

    def silent(self) -> list[int]:
        """The ranks that have published nothing."""
        if self.store.add("ranks", 0) >= self.size:
            return []
        return [rank for rank in range(self.size) if not self.store.check([f"rank {rank}"])]

    def _get(self, key: str) -> str:
        text: str = self.store.get(key).decode()
        return text


def _named(ranks: tuple[int, ...], of: dict[int, str]) -> str:
    hosts = list(dict.fromkeys(of[rank] for rank in ranks))
    return f"{_ranks(ranks)} ({shortened_list(hosts, _HOSTS)})"


def _ranks(numbers: Iterable[int]) -> str:
    """[3] -> "rank 3"; [1, 4, 5, 6] -> "ranks 1, 4-6"."""
    ranks = list(numbers)
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], rank]
        else:
            runs.append([rank])
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join('-'.join(map(str, run)) for run in runs)}"
