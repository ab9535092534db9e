"""Runs DeepSpeed's tests: a process that has imported torch forks one pytest after another.

    server.py RESULTS

For each line of standard input, a JSON list of arguments, pytest runs in the current directory; its process id and its
exit status are written to standard output, its output to the file RESULTS.log. The ranks of a test are forked from
pytest, which otherwise starts a process that imports torch and DeepSpeed again. Nothing of dsfix is loaded here.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any


class Forking:
    """A pytest plugin. On the CPU collectives in shared memory, which need compiling, are left to gloo."""

    def pytest_collection_finish(self) -> None:
        processes: Any = importlib.import_module("torch.multiprocessing")
        start_method = processes.set_start_method
        processes.set_start_method = lambda method, force=False: start_method("fork", force=True)
        accelerator: Any = importlib.import_module("deepspeed.accelerator").get_accelerator()
        if accelerator.device_name() == "cpu":
            create = accelerator.create_op_builder
            accelerator.create_op_builder = lambda name: None if name == "ShareMemCommBuilder" else create(name)


def main() -> None:
    import pytest

    importlib.import_module("torch._dynamo")
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os.setsid()
            output = os.open(f"{sys.argv[1]}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for stream in (1, 2):
                os.dup2(output, stream)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            status = pytest.main(json.loads(line), plugins=[Forking()])
            os._exit(int(status))
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
