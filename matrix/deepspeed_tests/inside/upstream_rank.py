"""Imported once in the process from which ranks are forked: makes CPUs behave as tests expect; loads the operators."""

from __future__ import annotations

import importlib
from typing import Any


def _accept_devices() -> None:
    """Let DistributedDataParallel accept a device on the CPU, which tests pass."""
    parallel = importlib.import_module("torch.nn.parallel").DistributedDataParallel
    initialize = parallel.__init__

    def on_cpu(self: Any, module: Any, device_ids: Any = None, output_device: Any = None, **rest: Any) -> None:
        initialize(self, module, **rest)

    parallel.__init__ = on_cpu


def _name_device() -> None:
    """Return "cpu" as the current device, where tests place tensors; on the CPU it is the rank's number as a string."""
    accelerator = importlib.import_module("deepspeed.accelerator").get_accelerator()
    type(accelerator).current_device = lambda self: "cpu"


def _gather_scalars() -> None:
    """Let gloo gather zero-dimensional tensors, which a helper of the tests uses."""
    distributed: Any = importlib.import_module("torch.distributed")
    gather = distributed.all_gather_into_tensor

    def gathered(output_tensor: Any, input_tensor: Any, *rest: Any, **named: Any) -> Any:
        return gather(
            output_tensor, input_tensor.reshape(-1) if input_tensor.dim() == 0 else input_tensor, *rest, **named
        )

    distributed.all_gather_into_tensor = gathered


_accept_devices()
_name_device()
_gather_scalars()
# otherwise each rank inspects the processor and the sources
importlib.import_module("upstream_operators").load()
