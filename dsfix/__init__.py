"""`import dsfix` first: the installed DeepSpeed behaves as if its known bugs were fixed.

Importing this package imports neither torch nor DeepSpeed. `report()` says what became of every patch.
"""

from __future__ import annotations

from .outcome import Outcome, StrictError, UnknownPatch
from .process import PatchReport, activate, is_command_line, report, revert

__all__ = ["Outcome", "PatchReport", "StrictError", "UnknownPatch", "report", "revert"]
__version__ = "0.1.0"

if not is_command_line():
    activate()
