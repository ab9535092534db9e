"""Imported once in the process that ranks are forked from."""

from __future__ import annotations

import importlib
from typing import Any


def _without_devices() -> None:
    """On the CPU DistributedDataParallel refuses the devices that tests give it."""
    parallel = importlib.import_module("torch.nn.parallel").DistributedDataParallel
    initialize = parallel.__init__

    def on_cpu(self: Any, module: Any, device_ids: Any = None, output_device: Any = None, **rest: Any) -> None:
        initialize(self, module, **rest)

    parallel.__init__ = on_cpu


_without_devices()
# else each rank looks at the processor and the sources
importlib.import_module("upstream_operators").load()
