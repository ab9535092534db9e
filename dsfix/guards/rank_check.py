"""After init_distributed: do all ranks run the same dsfix, DeepSpeed and torch with the same patches?

deepspeed.initialize, zero.Init and accelerate call init_distributed before any other collective work, so a difference
is one error on all ranks here; later it would be a hang or silently different weights.

The ranks compare through the store of the process group's rendezvous, not by a collective. A rank without dsfix takes
part in neither, but a rank can wait for a missing key with a time limit and name the missing rank, whereas a collective
would be matched by the first one of DeepSpeed. The store works with every backend and device. Each rank sets one
digest; rank 0 reads them all and sets the verdict, for which the others wait.

torch's elastic agent may keep one store for all attempts of a job (https://github.com/pytorch/pytorch/issues/135712),
so keys may be left over from dead ranks. Only the announcement of rank 0 is under a key shared by all attempts; a rank
answers it with its own token and accepts only a verdict addressed to that token.
"""

from __future__ import annotations

import importlib
import os
import socket
import time
import weakref
from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from .. import log
from . import GuardError
from .statement import Group, Statement, differences

if TYPE_CHECKING:
    from .initialize import Call

PATIENCE = timedelta(seconds=60)
"""After this time the log names the missing ranks."""

_POLL = timedelta(seconds=1)  # how often a rank checks whether rank 0 has been replaced by a new one
_ANNOUNCEMENT = "0"  # the key of rank 0's announcement
_HOSTS = 3  # hosts that an error names
_ADVICE = (
    "Remedy: the same packages and DSFIX_ variables on all hosts; DSFIX_RANK_CHECK=0 on all ranks disables this check"
)
_compared: Any = None  # a weak reference to the process group whose ranks have been compared


class RankError(GuardError):
    """The ranks of the job differ; the message is the same on all ranks with dsfix."""


def after(call: Call, _: Any) -> None:
    """Compares the ranks of the default process group, once.

    Raises:
        RankError: they differ, or a rank does not take part within the time limit of the process group.
    """
    global _compared
    distributed: Any = importlib.import_module("torch.distributed")
    if not call.settings.rank_check or not distributed.is_initialized() or distributed.get_world_size() == 1:
        return
    group = distributed.group.WORLD
    store = distributed.distributed_c10d._get_default_store()  # torch has no public function for it
    if store is None or (_compared is not None and _compared() is group):  # MPI has no store
        return
    _compared = weakref.ref(group)
    comparison = Comparison(
        distributed.PrefixStore("dsfix", store), distributed.get_rank(), distributed.get_world_size()
    )
    verdict = comparison.verdict(Statement.here())
    if verdict:
        raise RankError(f"{verdict}\n{_ADVICE}")


class Comparison:
    """One comparison of all ranks; `store` is a torch.distributed.Store that nothing else uses."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self.store, self.rank, self.size = store, rank, size
        self.limit: timedelta = store.timeout
        self.token = os.urandom(8).hex()

    def verdict(self, mine: Statement) -> str:
        """The differences between the ranks as text, "" if there are none; the same on all ranks."""
        return self._answer(mine) if self.rank else self._decide(mine)

    def _answer(self, mine: Statement) -> str:
        if self._missing({_ANNOUNCEMENT: 0}):
            return self._absent([0])
        until = time.monotonic() + (self.limit + 2 * PATIENCE).total_seconds()  # rank 0 may wait for others
        answered = ""
        while time.monotonic() < until:
            token, digest = self._get(_ANNOUNCEMENT).split()
            if token != answered:
                if digest != mine.digest:
                    self.store.set(f"{token}/{mine.digest}", mine.to_json())
                self.store.set(f"{token}/{self.rank}", f"{self.token} {mine.digest} {socket.gethostname()}")
                answered = token
            if not self._wait([self.token], _POLL):
                verdict = self._get(self.token)
                self.store.set(f"{self.token}/read", "")
                return verdict
        return self._absent([0])

    def _decide(self, mine: Statement) -> str:
        self.store.set(_ANNOUNCEMENT, f"{self.token} {mine.digest}")
        missing = self._missing({f"{self.token}/{rank}": rank for rank in range(1, self.size)})
        present = [rank for rank in range(1, self.size) if rank not in missing]
        answers = {rank: self._get(f"{self.token}/{rank}").split() for rank in present}
        verdict = ""  # if the next line fails, the others must not wait
        try:
            verdict = self._judge(mine, answers, missing)
        finally:
            for token, *_ in answers.values():
                self.store.set(token, verdict)
        if verdict:  # the store may end with rank 0
            self._wait([f"{token}/read" for token, *_ in answers.values()], PATIENCE)
        return verdict

    def _judge(self, mine: Statement, answers: dict[int, list[str]], missing: list[int]) -> str:
        hosts = {0: socket.gethostname()}
        ranks = {mine.digest: [0]}
        for rank, (_, digest, host) in answers.items():
            hosts[rank] = host
            ranks.setdefault(digest, []).append(rank)
        groups: list[Group] = [(ranks.pop(mine.digest), mine)]
        groups += [(where, Statement.from_json(self._get(f"{self.token}/{each}"))) for each, where in ranks.items()]
        lines = [f"  {_named(where, hosts)}: {'; '.join(what)}" for where, what in differences(groups).items()]
        found = ["the ranks of this job differ, which would cause a hang or different weights:", *lines]
        return "\n".join([*(found if lines else []), *([self._absent(missing)] if missing else [])])

    def _missing(self, keys: dict[str, int]) -> list[int]:
        """Waits for the keys of these ranks as long as a collective would; returns the missing ranks."""
        missing = self._wait(list(keys), min(PATIENCE, self.limit))
        if missing and self.limit > PATIENCE:
            if self.rank <= 1:  # one log line; rank 1 logs it if rank 0 is missing
                late = _ranks(keys[key] for key in missing)
                log.warn(f"no answer from {late}: late, or without dsfix; waiting for {self._time}")
            missing = self._wait(missing, self.limit - PATIENCE)
        return [keys[key] for key in missing]

    def _wait(self, keys: list[str], limit: timedelta) -> list[str]:
        try:
            self.store.wait(keys, limit)
        except RuntimeError:  # timed out; if the store is gone, `check` raises
            return [key for key in keys if not self.store.check([key])]
        return []

    def _absent(self, ranks: list[int]) -> str:
        return (
            f"no answer from {_ranks(ranks)} in {self._time}: without dsfix, with DSFIX_DISABLE=1 or "
            "DSFIX_RANK_CHECK=0, or stuck."
        )

    @property
    def _time(self) -> str:
        return f"{self.limit.total_seconds():g} s"

    def _get(self, key: str) -> str:
        text: str = self.store.get(key).decode()
        return text


def _named(ranks: tuple[int, ...], of: dict[int, str]) -> str:
    hosts = list(dict.fromkeys(of[rank] for rank in ranks))
    more = f" and {len(hosts) - _HOSTS} more" if len(hosts) > _HOSTS else ""
    return f"{_ranks(ranks)} ({', '.join(hosts[:_HOSTS])}{more})"


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
