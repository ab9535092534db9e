"""`DSFIX_CHECK=warn|error`: checks the config passed to deepspeed.initialize with the rules of `check`."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from .. import log, versions
from ..outcome import Outcome
from ..process import report as patch_reports
from ..rules import Level, all_in_range
from . import GuardError
from .initialize import Call

if TYPE_CHECKING:
    from ..check.arguments import Value

_OVERRIDE = {"optimizer": "optimizer", "scheduler": "lr_scheduler"}  # block of the config -> argument
_SCHEDULER_OVERRIDDEN = {"deepspeed": ">=0.14.5"}  # before, the config's wins
_ROUTING = ("half_routing_bias", "e_score_correction_bias")  # a patch, and the buffers that it keeps in fp32
_HALF = ("torch.float16", "torch.bfloat16")
# of an mpu, in the order in which DeepSpeed asks
_SIZES = ("get_tensor_model_parallel_world_size", "get_slice_parallel_world_size", "get_model_parallel_world_size")


class ConfigError(GuardError):
    """Under DSFIX_CHECK=error: the config has errors; the message lists them."""


def before(call: Call) -> None:
    """Logs errors and warnings on rank 0; only the command prints notes. Raises ConfigError."""
    if call.settings.check == "off" or call.config is None:
        return
    from ..check.checking import check

    overridden = [key for key, argument in _OVERRIDE.items() if call.arguments.get(argument) is not None]
    if not all_in_range(_SCHEDULER_OVERRIDDEN, {"deepspeed": versions.installed("deepspeed")}):
        overridden = [key for key in overridden if key != "scheduler"]
    try:
        checked = check(
            call.config,
            world_size=_world_size(call),
            given=_given(call),
            plain=True,
            overridden=overridden,
            in_job=True,
        )
    except ValueError as error:
        _report(call, [str(error)], stop=True)
        return
    applied = {patch_report.id for patch_report in patch_reports() if patch_report.outcome is Outcome.APPLIED}
    worst = [
        finding
        for finding in checked.findings
        if finding.level is Level.ERROR or (finding.level is Level.WARNING and applied.isdisjoint(finding.patches))
    ]
    if worst:
        lines = [f"{f.level.value}: {f.where or 'config'}: {f.what} ({f.remedy}) [{f.rule}]" for f in worst]
        _report(call, lines, stop=any(finding.level is Level.ERROR for finding in worst))


def _report(call: Call, lines: list[str], stop: bool) -> None:
    message = "the DeepSpeed config: " + "\n  ".join(lines)
    if stop and call.settings.check == "error":
        raise ConfigError(f"{message}\nStopped by DSFIX_CHECK=error; DSFIX_CHECK=warn only warns")
    if log.rank() == 0:
        log.warn(message)


def _given(call: Call) -> dict[str, Value]:
    arguments: dict[str, Value] = {}
    optimizer = call.arguments.get("optimizer")
    if hasattr(optimizer, "param_groups"):
        arguments["optimizer"] = type(optimizer).__name__
    scheduler = call.arguments.get("lr_scheduler")
    if scheduler is not None:
        arguments["scheduler"] = type(scheduler).__name__
    if hasattr(call.model, "peft_config"):
        arguments["lora"] = "peft"
    if getattr(call.model, "is_gradient_checkpointing", False) is True:
        arguments["gradient_checkpointing"] = True
    arguments.update(_of_the_job(call))
    return arguments


def _of_the_job(call: Call) -> dict[str, Value]:
    """What only the job knows: its processes, its mpu, and the dtypes of its model."""
    facts: dict[str, Value] = {}
    launched = os.environ.get("WORLD_SIZE", "")
    if launched.isdigit() and int(launched):
        facts["launched"] = int(launched)
    mpu = call.arguments.get("mpu")
    for name in _SIZES:
        if hasattr(mpu, name):
            facts["tensor_parallel"] = int(getattr(mpu, name)())
            break
    if hasattr(call.model, "named_modules"):
        facts["float8"] = any("float8" in str(getattr(parameter, "dtype", "")) for parameter in call.model.parameters())
        facts["fp32_buffers"] = _loses_fp32(call.model)
    return facts


def _loses_fp32(model: Any) -> bool:
    """Whether DeepSpeed casts, or zero.Init has cast, a buffer that the model's class keeps in fp32."""
    from ..check.rules.surroundings import CASTS_BUFFERS

    patched = any(
        patch_report.id == _ROUTING[0] and patch_report.outcome is Outcome.APPLIED for patch_report in patch_reports()
    )
    casts_all = all_in_range(CASTS_BUFFERS, {"deepspeed": versions.installed("deepspeed")})
    dtypes = (*_HALF, "torch.float32") if casts_all else _HALF
    fp32_patterns = [
        (f"{place}." if place else "", str(each).replace("*", ".*"))
        for place, module in model.named_modules()
        for each in getattr(module, "_keep_in_fp32_modules_strict", None) or ()
    ]
    if not fp32_patterns:
        return False
    return any(
        name.startswith(place) and re.search(pattern, name[len(place) :])
        for name, buffer in model.named_buffers()
        if str(getattr(buffer, "dtype", "")) in dtypes and not (patched and name.endswith(_ROUTING[1]))
        for place, pattern in fp32_patterns
    )


def _world_size(call: Call) -> int | None:
    """The number of data-parallel processes; None if the user passes a topology."""
    topologies = (call.arguments.get("mpu"), call.arguments.get("mesh_param"), getattr(call.model, "mpu", None))
    if any(topology is not None for topology in topologies):  # the last is that of a PipelineModule
        return None
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return int(torch.distributed.get_world_size())
    text = os.environ.get("WORLD_SIZE", "")
    return int(text) if text.isdigit() and int(text) else None
