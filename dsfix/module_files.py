"""Where a module's source is, without importing it."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec, PathFinder


def module_file(name: str) -> str | None:
    """The file that `import name` would execute, or None; runs no code of the package."""
    module = sys.modules.get(name)
    if module is not None:
        return getattr(module, "__file__", None)
    walked, _, rest = name.partition(".")
    try:
        spec: ModuleSpec | None = importlib.util.find_spec(walked)
        for part in rest.split(".") if rest else ():
            if spec is None or spec.submodule_search_locations is None:
                return None
            walked = f"{walked}.{part}"
            spec = PathFinder.find_spec(walked, list(spec.submodule_search_locations))
    except (ImportError, ValueError, KeyError):  # KeyError: a namespace package whose parent has to be imported first
        return None
    return spec.origin if spec is not None and spec.has_location else None
