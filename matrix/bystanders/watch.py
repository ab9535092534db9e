"""Count what a patch may add to a rank: collectives and waits of the host for the device. Imports torch."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import distributed
from torch.distributed import distributed_c10d

_COLLECTIVES = (
    *("all_gather", "all_gather_into_tensor", "_all_gather_base", "all_reduce", "all_to_all", "all_to_all_single"),
    *("broadcast", "gather", "reduce", "reduce_scatter", "reduce_scatter_tensor", "_reduce_scatter_base", "scatter"),
    *("all_reduce_coalesced", "all_gather_coalesced", "barrier", "send", "recv", "isend", "irecv"),
)
_READ_BY_THE_HOST = ("item", "tolist", "__bool__", "__float__", "__int__", "cpu", "nonzero", "equal")

Collective = tuple[str, tuple[int, ...], int, str]


class Watch:
    """collectives: in order; kind, ranks of the group, elements and dtype of the first tensor. syncs: how often the
    host waited for the device."""

    def __init__(self) -> None:
        self.collectives: list[Collective] = []
        self.syncs = 0
        self._inside = threading.local()

    def install(self) -> None:
        """Watch for the rest of this process."""
        for name in _COLLECTIVES:
            if hasattr(distributed_c10d, name):
                watched = self._collective(name, getattr(distributed_c10d, name))
                for module in (distributed_c10d, distributed):
                    setattr(module, name, watched)
        for name in _READ_BY_THE_HOST:
            setattr(torch.Tensor, name, self._read(getattr(torch.Tensor, name)))
        torch.cuda.synchronize = self._waiting(torch.cuda.synchronize)
        stream: Any = torch.cuda.Stream
        stream.synchronize = self._waiting(stream.synchronize)

    def _collective(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            with self._outermost() as outermost:
                if outermost:
                    self.collectives.append((name, _ranks(args, options), *_first_tensor(args, options)))
                return function(*args, **options)

        return call

    def _read(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(tensor: Any, *args: Any, **options: Any) -> Any:
            with self._outermost() as outermost:
                self.syncs += outermost and tensor.device.type == "cuda"
                return function(tensor, *args, **options)

        return call

    def _waiting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            self.syncs += not getattr(self._inside, "yes", False)
            return function(*args, **options)

        return call

    @contextmanager
    def _outermost(self) -> Iterator[bool]:
        """Yield whether no other watched call of this thread is in progress."""
        inside = getattr(self._inside, "yes", False)
        self._inside.yes = True
        try:
            yield not inside
        finally:
            self._inside.yes = inside

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """Exclude calls made by the test harness."""
        with self._outermost():
            yield


def _ranks(args: Any, options: dict[str, Any]) -> tuple[int, ...]:
    groups = [each for each in (*args, *options.values()) if isinstance(each, distributed.ProcessGroup)]
    return tuple(distributed.get_process_group_ranks(groups[0] if groups else distributed.group.WORLD))


def _first_tensor(args: Any, options: dict[str, Any]) -> tuple[int, str]:
    for each in (*args, *options.values()):
        tensor = each[0] if isinstance(each, (list, tuple)) and each else each
        if isinstance(tensor, torch.Tensor):
            return tensor.numel(), str(tensor.dtype).removeprefix("torch.")
    return 0, ""
