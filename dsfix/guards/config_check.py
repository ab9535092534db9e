"""`DSFIX_CHECK=warn|error`: the config that is given to deepspeed.initialize against the rules of `check`."""

from __future__ import annotations

import os

from ..engine import log
from ..engine.outcome import Outcome
from ..engine.process import report
from ..rules import Finding, Level
from . import GuardError
from .initialize import Call

_OVERRIDE = {"optimizer": "optimizer", "scheduler": "lr_scheduler"}  # block of the config -> argument


class ConfigError(GuardError):
    """DSFIX_CHECK=error: the config has errors; the message names them."""


def before(call: Call) -> None:
    """Logs errors and warnings on rank 0; notes are for the command.

    Raises:
        ConfigError: DSFIX_CHECK=error and an error was found.
    """
    if call.settings.check == "off" or call.config is None:
        return
    from ..check.checking import check

    overridden = [key for key, argument in _OVERRIDE.items() if call.arguments.get(argument) is not None]
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
        _complain(call, [str(error)], stop=True)
        return
    applied = {each.id for each in report() if each.outcome is Outcome.APPLIED}
    worst = [
        finding for finding in checked.findings if finding.level is not Level.NOTE and not _cured(finding, applied)
    ]
    if worst:
        _complain(call, list(map(_line, worst)), stop=any(finding.level is Level.ERROR for finding in worst))


def _cured(finding: Finding, applied: set[str]) -> bool:
    """Whether what the warning is about does not happen in this process, for its patch is in force."""
    return finding.level is Level.WARNING and bool(applied.intersection(finding.patches))


def _line(finding: Finding) -> str:
    return f"{finding.level.value}: {finding.where or 'config'}: {finding.what} ({finding.remedy}) [{finding.rule}]"


def _complain(call: Call, lines: list[str], stop: bool) -> None:
    message = "the DeepSpeed config: " + "\n  ".join(lines)
    if stop and call.settings.check == "error":
        raise ConfigError(f"{message}\nDSFIX_CHECK=error stopped this job; DSFIX_CHECK=warn lets it go on")
    if log.rank() == 0:
        log.warn(message)


def _given(call: Call) -> dict[str, str | bool]:
    given: dict[str, str | bool] = {}
    optimizer = call.arguments.get("optimizer")
    if hasattr(optimizer, "param_groups"):
        given["optimizer"] = type(optimizer).__name__
    if hasattr(call.model, "peft_config"):
        given["lora"] = "peft"
    if getattr(call.model, "is_gradient_checkpointing", False) is True:
        given["gradient_checkpointing"] = True
    return given


def _world_size(call: Call) -> int | None:
    """Processes that the batch is divided by; None where a topology of the user's own says it."""
    topologies = (call.arguments.get("mpu"), call.arguments.get("mesh_param"), getattr(call.model, "mpu", None))
    if any(topology is not None for topology in topologies):  # the last one is PipelineModule's
        return None
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return int(torch.distributed.get_world_size())
    text = os.environ.get("WORLD_SIZE", "")
    return int(text) if text.isdigit() and int(text) else None
