"""Import dsfix first: it fixes known bugs of the installed DeepSpeed in memory.

Importing this package imports neither torch nor DeepSpeed. `report()` returns the outcome of every patch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .outcome import Outcome, RequirementError, StrictError, UnknownPatch, error_text
from .process import PatchReport, activate, is_command_line, report, require, revert

if TYPE_CHECKING:
    from .check.checking import check_config
    from .guards import GuardError
    from .guards.devices import DeviceMismatch, check_tensors_device
    from .guards.placement_report import Misplaced, PlacementReport, placement_report

__all__ = [
    "DeviceMismatch",
    "GuardError",
    "Misplaced",
    "Outcome",
    "PatchReport",
    "PlacementReport",
    "RequirementError",
    "StrictError",
    "UnknownPatch",
    "check_config",
    "check_tensors_device",
    "placement_report",
    "report",
    "require",
    "revert",
]
__version__ = "0.2.0.dev0"

_LAZY = {
    "DeviceMismatch": "guards.devices",
    "GuardError": "guards",
    "Misplaced": "guards.placement_report",
    "PlacementReport": "guards.placement_report",
    "check_config": "check.checking",
    "check_tensors_device": "guards.devices",
    "placement_report": "guards.placement_report",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    globals()[name] = value
    return value


if not is_command_line():
    _settings = activate()
    if _settings is not None and not _settings.disable:
        from . import log
        from .guards.initialize import GuardHooks

        try:
            GuardHooks(_settings).start()
        except Exception as error:  # never let dsfix break the job
            log.warn(f"the guards could not start: {error_text(error)}")
