"""What the machine is. Python runs this before the script, because run.py puts this directory on PYTHONPATH.

train.py is what one writes for a machine with a GPU; where there is none, dsfix.lab emulates one. Its modules are
loaded without running dsfix/__init__.py, which is what switches dsfix on, and no module of dsfix is left in
sys.modules: whether dsfix is active is up to the script.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types


def give_cuda() -> None:
    """dsfix.lab's CUDA device, from a stand-in for the package dsfix that finds its files and runs no __init__.py."""
    spec = importlib.util.find_spec("dsfix")
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError("dsfix is not installed")
    package = types.ModuleType("dsfix")
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules["dsfix"] = package
    try:
        from dsfix.lab.cuda_device import use_cuda

        use_cuda()
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "dsfix"]:
            del sys.modules[name]


give_cuda()
if "DEMO_OLD_NAMES" in os.environ:
    import old_names  # noqa: F401
