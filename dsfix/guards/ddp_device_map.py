"""Before DistributedDataParallel: a model that was loaded with device_map.

With `device_ids` the whole model must be on that one device. Without it DDP correctly trains a model that accelerate
spreads over several devices, provided that processes share no device. No process can know that alone, so such a model
passes, with a warning if the machine has too few devices for all its processes. The warning may be wrong if
CUDA_VISIBLE_DEVICES differs between processes. NCCL stops a job whose processes share a device.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from typing import TYPE_CHECKING, Any

from .. import log
from . import dispatch
from .device_map import OFF, refuse, refuse_offloaded, repair

if TYPE_CHECKING:
    from .initialize import Call

REMEDY = "Load it without device_map, or onto this rank's device with device_map={'': int(os.environ['LOCAL_RANK'])}."


def before(call: Call) -> None:
    """Raises GuardError if part of the model is not on the device passed to DDP, or is offloaded.

    Under DSFIX_DEVICE_MAP=repair removes the hooks and the map and moves the model to that device, or to LOCAL_RANK's
    without `device_ids`; an offloaded model is still an error.
    """
    if call.settings.device_map == "off":
        return
    model, device_ids = call.arguments["module"], call.arguments.get("device_ids")
    parameters = dict(model.named_parameters())
    kinds = {parameter.device.type for parameter in parameters.values()} - {"cpu", "meta"}
    if len(kinds) > 1:  # DDP refuses such a model
        return
    kind = "".join(kinds) or "cpu"
    devices: Any = getattr(importlib.import_module("torch"), kind, None)
    here = kind if kind == "cpu" else _device(kind, devices, device_ids)
    result = dispatch.find_dispatch(model, here)
    # users who exclude parameters from DDP place them themselves
    if result is None or not parameters.keys().isdisjoint(getattr(model, "_ddp_params_and_buffers_to_ignore", ())):
        return
    refuse_offloaded(result, REMEDY)
    if kind == "cpu":
        return
    if device_ids:
        wrong = result.elsewhere(here) or {str(parameter.device) for parameter in parameters.values()} != {here}
    else:
        wrong = _too_few(result, devices.device_count())
    if wrong and call.settings.device_map == "repair":
        repair(result, f"the model is moved to {here}")
        model.to(here)
    elif wrong and device_ids:
        if not result.elsewhere(here):
            placed = {name.rpartition(".")[0]: str(parameter.device) for name, parameter in parameters.items()}
            result = dataclasses.replace(result, placed=placed)
        refuse(result, here, f"DistributedDataParallel was given {here} as device_ids", REMEDY)
    elif wrong:
        log.warn(
            "device_map placed the model on several devices, and this machine has too few devices for each process to "
            f"have its own: NCCL stops a job whose processes share a device. {REMEDY} {OFF}"
        )


def _device(kind: str, devices: Any, device_ids: Any) -> str:
    current = int(devices.current_device())
    if device_ids:
        return dispatch.label(device_ids[0], f"{kind}:{current}")
    rank = int(os.environ.get("LOCAL_RANK", -1))
    return f"{kind}:{rank if 0 <= rank < devices.device_count() else current}"


def _too_few(found: dispatch.Dispatch, count: int) -> bool:
    used = len(set(found.placed.values()))
    return used > 1 and used * int(os.environ.get("LOCAL_WORLD_SIZE", 1)) > count
