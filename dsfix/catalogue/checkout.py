"""A checkout that is not installed: its patches/ lies next to the package, which no import finds as dsfix.patches."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

_PATCHES = Path(__file__).resolve().parents[2] / "patches"


def load(name: str) -> ModuleType:
    """The package of patches as the module `name`. Raises ModuleNotFoundError if this is not a checkout."""
    spec = importlib.util.spec_from_file_location(name, _PATCHES / "__init__.py")
    if spec is None or spec.loader is None or not (_PATCHES / "_template.py").is_file():  # not another package's
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
