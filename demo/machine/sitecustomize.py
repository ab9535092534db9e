"""Sets up the machine. Python runs this before the script, because run.py puts this directory on PYTHONPATH.

train.py is written for a machine with a GPU; without one, dsfix.lab emulates it. Its modules are loaded without running
dsfix/__init__.py, which would activate dsfix, and no module of dsfix stays in sys.modules: the script decides whether
dsfix is active.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types


def set_up_cuda() -> None:
    """Sets up dsfix.lab's CUDA device through a stand-in for the package dsfix that does not run its __init__.py."""
    spec = importlib.util.find_spec("dsfix")
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError("dsfix is not installed")
    package = types.ModuleType("dsfix")
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules["dsfix"] = package
    try:
        from dsfix.lab.accelerator import use_cuda

        use_cuda()
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "dsfix"]:
            del sys.modules[name]


def restore_old_names() -> None:
    """Restores two names that torch and numpy had when DeepSpeed 0.14.2 was released, without dsfix."""
    import numpy
    import torch.distributed.elastic.agent.server.api as torch_elastic
    from torch.distributed.elastic.utils.distributed import get_socket_with_port

    torch_elastic._get_socket_with_port = get_socket_with_port
    numpy.BUFSIZE = 8192


set_up_cuda()
if "DEMO_OLD_NAMES" in os.environ:
    restore_old_names()
