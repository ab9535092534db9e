"""Where a module's source is and what it says, without importing it."""

from __future__ import annotations

import importlib.util
import os
import sys
import zipimport
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


def content(path: str) -> bytes:
    """What a file contains, also one in a zip archive. Raises OSError or ImportError."""
    if not os.path.exists(path):
        return zipimport.zipimporter(os.path.dirname(path)).get_data(path)
    with open(path, "rb") as file:
        return file.read()


def on_disk(path: str) -> str:
    """The file of that path, or the zip archive that has it, or the nearest directory where it is missing."""
    while path and not os.path.exists(path):
        path = os.path.dirname(path)
    return path
