"""Loaded at the start of every Python under `python -m dsfix run`, which puts this directory on PYTHONPATH.

It is first on the path and must hide nothing: it removes this directory from sys.path and loads the sitecustomize that
Python would have found. Any Python may load it, including old ones.
"""

import os
import sys

if sys.version_info >= (3, 7):  # noqa: UP036
    import _dsfix_start  # type: ignore[import-not-found]  # noqa: F401

_directory = os.path.dirname(__file__)
sys.path[:] = [entry for entry in sys.path if entry != _directory]
_this = sys.modules.pop("sitecustomize")
try:
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
except ImportError as error:
    if getattr(error, "name", "sitecustomize") != "sitecustomize":
        raise
    sys.modules["sitecustomize"] = _this  # the import system expects the module that it loaded
