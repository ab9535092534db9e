"""Before deepspeed.initialize: a model that was loaded with device_map.

The engine moves all parameters to this rank's device and ignores accelerate's hooks, which keep sending inputs to the
devices of the map: the first forward pass fails with "Expected all tensors to be on the same device". Only the hooks
matter, not `hf_device_map`: a map whose hooks were removed, or one with a single device (which has no hooks), is
harmless, because the engine moves the model. A single device that belongs to another rank is a warning.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from .. import log
from ..outcome import shortened_list
from . import GuardError, dispatch

if TYPE_CHECKING:
    from .initialize import Call

REMEDY = (
    "Load it without device_map (quantized weights: device_map={'': int(os.environ['LOCAL_RANK'])}); "
    "if it does not fit one device, use ZeRO-3."
)
OFF = "DSFIX_DEVICE_MAP=off disables this check."


def before(call: Call) -> None:
    """Raises GuardError if part of the model is computed on a device other than the engine's, or is offloaded.

    Under DSFIX_DEVICE_MAP=repair removes the hooks and the map instead; an offloaded model is still an error.
    """
    if call.settings.device_map == "off":
        return
    here = _device(call)
    result = dispatch.find_dispatch(call.model, here)
    if result is None:
        return
    refuse_offloaded(result, REMEDY)
    if result.elsewhere(here):
        if call.settings.device_map == "repair":
            repair(result, f"DeepSpeed moves the model to {here}")
        else:
            refuse(result, here, f"DeepSpeed moves the whole model to {here}", REMEDY)
    elif not result.placed and len(result.mapped) == 1 and result.mapped.isdisjoint({here, "cpu", "disk"}):
        (other,) = result.mapped
        log.warn(
            f"device_map placed the model on {other}, and DeepSpeed moves it to {here}: this process uses memory on "
            f"both. {REMEDY}"
        )


def refuse(found: dispatch.Dispatch, here: str, why: str, remedy: str) -> None:
    """Raises GuardError with the modules and devices; `why` the model must be on the device `here`."""
    raise GuardError(
        f"device_map placed modules on devices other than {here}, but {why}.\n{found.describe()}\n{remedy} "
        f"DSFIX_DEVICE_MAP=repair removes accelerate's hooks instead. {OFF}"
    )


def refuse_offloaded(found: dispatch.Dispatch, remedy: str) -> None:
    """Raises GuardError if weights are on the CPU or on disk and are only loaded to the device for each call."""
    if found.offloaded:
        raise GuardError(
            "device_map offloaded parts of the model. Their parameters are on the meta device, so "
            "DSFIX_DEVICE_MAP=repair cannot restore them.\n"
            f"  {shortened_list(found.offloaded, dispatch.NAMES)}\n{remedy} {OFF}"
        )


def repair(found: dispatch.Dispatch, then: str) -> None:
    count = found.remove()
    log.info_on_rank_zero(
        f"DSFIX_DEVICE_MAP=repair: removed accelerate's hooks from {count} module{'s' * (count != 1)}; {then}"
    )


def _device(call: Call) -> str:
    """This rank's device as the engine will choose it: args.device_rank, else LOCAL_RANK, else the current device.

    Without these variables the engine may query MPI; if that finds more than one process, its launcher has set them.
    """
    accelerator: Any = importlib.import_module("deepspeed.accelerator").get_accelerator()
    kind = str(accelerator.device_name())
    if kind == "cpu":
        return kind
    index = getattr(call.arguments.get("args"), "device_rank", None)
    if index is None:
        index = os.environ.get("LOCAL_RANK", os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK"))
    return f"{kind}:{accelerator.current_device() if index is None else index}"
