"""A rank that shares the machine's only GPU with the job's other ranks."""

from __future__ import annotations

import importlib
import os

import wrapt


def main(module: str, *arguments: str) -> int:
    """What `main` of the module returns for these arguments, in such a rank."""
    os.environ["LOCAL_RANK"] = "0"
    wrapt.register_post_import_hook(_stage, "torch.distributed.distributed_c10d")
    status: int = importlib.import_module(module).main(*arguments)
    return status


def _stage(c10d: object) -> None:
    from matrix.gpu import staged  # imports torch

    staged.use(c10d)
