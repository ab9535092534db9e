"""Before deepspeed.initialize: a model that was loaded with device_map.

The engine moves all parameters to this rank's device and never looks at accelerate's hooks, which go on sending inputs
to the devices of the map: the first forward pass ends with "Expected all tensors to be on the same device". The hooks
decide, and not `hf_device_map`: a map whose hooks have been removed stops nothing, nor does one that names one device
only (it comes without hooks), for the engine moves such a model. The second is worth a warning where the device is
another rank's.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from ..engine import log
from . import GuardError, dispatch

if TYPE_CHECKING:
    from .initialize import Call

REMEDY = (
    "Load it without device_map (quantized weights: device_map={'': int(os.environ['LOCAL_RANK'])}); "
    "if it does not fit one device, use ZeRO-3."
)
OFF = "DSFIX_DEVICE_MAP=off lets the model pass."


def before(call: Call) -> None:
    """Raises GuardError where a part of the model is computed on another device than the engine's, or is offloaded.

    Under DSFIX_DEVICE_MAP=repair the hooks and the map are taken off instead; what is offloaded is still an error.
    """
    if call.settings.device_map == "off":
        return
    here = _device(call)
    found = dispatch.find(call.model, here)
    if found is None:
        return
    refuse_offloaded(found, REMEDY)
    if found.elsewhere(here):
        if call.settings.device_map == "repair":
            repair(found, f"DeepSpeed moves the model to {here}")
        else:
            refuse(found, f"{here}, to which DeepSpeed moves all of it", REMEDY)
    elif not found.placed and len(found.mapped) == 1 and found.mapped.isdisjoint({here, "cpu", "disk"}):
        (other,) = found.mapped
        log.warn(
            f"device_map has put the model on {other}, and DeepSpeed moves it to {here}: this process takes memory on "
            f"both. {REMEDY}"
        )


def refuse(found: dispatch.Dispatch, place: str, remedy: str) -> None:
    """Raises GuardError with the modules and devices; `place` is where all of the model should be, and who says so."""
    raise GuardError(
        f"the model was loaded with device_map, onto other devices than {place}.\n{found.describe()}\n{remedy} "
        f"DSFIX_DEVICE_MAP=repair takes accelerate's hooks off instead, {OFF}"
    )


def refuse_offloaded(found: dispatch.Dispatch, remedy: str) -> None:
    """Raises GuardError where weights are on the CPU or on disk and come to the device for each call only."""
    if found.offloaded:
        raise GuardError(
            "the model was loaded with device_map, which has offloaded parts of it: their parameters are on meta, and "
            f"DSFIX_DEVICE_MAP=repair cannot bring them back.\n  {dispatch.listed(found.offloaded)}\n{remedy} {OFF}"
        )


def repair(found: dispatch.Dispatch, then: str) -> None:
    """Takes the hooks and the map off, and says so."""
    count = found.remove()
    log.inform(f"DSFIX_DEVICE_MAP=repair: accelerate's hooks are off {count} modules; {then}")


def _device(call: Call) -> str:
    """This rank's device as the engine will choose it: args.device_rank, else LOCAL_RANK, else the current device.

    Without a launcher's variables it may yet ask MPI; where it finds more than one process, these have set it.
    """
    accelerator: Any = importlib.import_module("deepspeed.accelerator").get_accelerator()
    kind = str(accelerator.device_name())
    if kind == "cpu":
        return kind
    index = getattr(call.arguments.get("args"), "device_rank", None)
    if index is None:
        index = os.environ.get("LOCAL_RANK", os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK"))
    return f"{kind}:{accelerator.current_device() if index is None else index}"
