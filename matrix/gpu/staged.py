"""Collectives of ranks that share one GPU, which NCCL refuses: gloo, on copies in host memory."""

from __future__ import annotations

import datetime
import re
from typing import Any, Callable

import torch
from torch._C._distributed_c10d import ProcessGroup, ProcessGroupGloo, _create_work_from_future  # type: ignore[attr-defined,unused-ignore]

NAME = "staged"
# their names differ between releases of torch
_OPERATION = re.compile(
    r"_?(all_?gather|all_?reduce|all_?to_?all|reduce|broadcast|gather|scatter|send|recv)|.*barrier$"
)
Copies = list[tuple[torch.Tensor, torch.Tensor]]


class Staged(ProcessGroup):  # type: ignore[misc,unused-ignore]
    """A process group whose operations are complete when they return."""

    def __init__(self, store: Any, rank: int, size: int, timeout: datetime.timedelta) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg,unused-ignore]
        self.host = ProcessGroup(store, rank, size)
        gloo = ProcessGroupGloo(store, rank, size, timeout=timeout)
        self.host._set_default_backend(ProcessGroup.BackendType.GLOO)
        self.host._register_backend(torch.device("cpu"), ProcessGroup.BackendType.GLOO, gloo)

    def getBackendName(self) -> str:
        return NAME

    def _start_coalescing(self, device: torch.device) -> None:
        pass

    def _end_coalescing(self, device: torch.device) -> Any:
        return _done()


def use(c10d: Any) -> None:
    """Call with torch.distributed.distributed_c10d, after its import: every new process group is a `Staged`."""
    c10d.Backend.register_backend(NAME, Staged, devices=["cpu", "cuda"])
    initialize, new_group = c10d.init_process_group, c10d.new_group

    def init_process_group(backend: str | None = None, *args: Any, **options: Any) -> None:
        options.pop("device_id", None)  # it would have NCCL split subgroups off
        initialize(NAME, *args, **options)

    def staged_group(*args: Any, **options: Any) -> Any:
        return new_group(*args, **{**options, "backend": NAME})

    c10d.init_process_group, c10d.new_group = init_process_group, staged_group


def _operation(name: str) -> Callable[..., Any]:
    def call(self: Staged, *args: Any, **options: Any) -> Any:
        copies: Copies = []
        work = getattr(self.host, name)(*_on_host(args, copies), **_on_host(options, copies))
        if work is not None:
            work.wait()
        for tensor, copy in reversed(copies):  # results come first in the arguments, and may share memory with inputs
            tensor.data.copy_(copy)  # `data`: inputs that autograd has saved do not count as changed
        return _done()

    return call


def _done() -> Any:
    future: Any = torch.futures.Future()
    future.set_result(None)
    return _create_work_from_future(future)


def _on_host(value: Any, copies: Copies) -> Any:
    """The value with copies in host memory in place of the GPU's tensors."""
    if isinstance(value, torch.Tensor) and value.device.type == "cuda":
        copies.append((value, value.detach().cpu()))
        return copies[-1][1]
    if isinstance(value, (list, tuple)):
        return type(value)(_on_host(each, copies) for each in value)
    if isinstance(value, dict):
        return {key: _on_host(each, copies) for key, each in value.items()}
    return value


for _name in filter(_OPERATION.match, dir(ProcessGroup)):
    setattr(Staged, _name, _operation(_name))
