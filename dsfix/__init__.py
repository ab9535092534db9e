"""`import dsfix` first: the installed DeepSpeed behaves as if its known bugs were fixed.

Importing this package imports neither torch nor DeepSpeed. `report()` says what became of every patch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .outcome import Outcome, StrictError, UnknownPatch
from .process import PatchReport, activate, is_command_line, report, revert

if TYPE_CHECKING:
    from .config.checking import check_config

__all__ = ["Outcome", "PatchReport", "StrictError", "UnknownPatch", "check_config", "report", "revert"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "check_config":  # loaded by those who use it
        from .config.checking import check_config

        return check_config
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if not is_command_line():
    activate()
