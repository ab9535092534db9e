"""Has two ranks run a script for each line of standard input, after the frameworks are imported once for all of them.

A line has ["script", "argument", …], {"variable": "value"} and the directory where the ranks run and write what they
print, to the files 0 and 1. The answer is null if both ended with status 0, else the number of the first that did not,
and its status.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import traceback
from pathlib import Path

RANKS = 2
SECONDS = 500  # of a job; on an idle machine it takes 10
LOADED = ("torch._dynamo", "torch._inductor.compile_fx", "torch.utils.cpp_extension", "transformers.trainer")
LOADED += ("transformers.models.llama.modeling_llama", "accelerate", "peft", "datasets")
LOADED += ("trl.trainer.sft_trainer", "trl.trainer.dpo_trainer")


def work(rank, port, command, variables, directory):
    os.chdir(directory)
    output = os.open(str(rank), os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": RANKS, "MASTER_PORT": port}
    os.environ.update({"MASTER_ADDR": "127.0.0.1", **{name: str(value) for name, value in ranks.items()}, **variables})
    sys.argv, sys.path[0] = command, str(Path(command[0]).parent)
    signal.alarm(SECONDS)
    return runpy.run_path(command[0], run_name="__main__")


def ranks_of(*job):
    """The first rank that fails, which ends the others, and its status; None if all succeed."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    ranks, left = {}, []
    for rank in range(RANKS):
        pid = os.fork()
        ranks[pid] = rank
        if pid == 0:
            status = 1
            with contextlib.suppress(BaseException):
                try:
                    left.append(work(rank, port, *job))  # torch can hang when it destroys a process group
                    status = 0
                except BaseException:
                    traceback.print_exc()
                atexit._run_exitfuncs()
                sys.stdout.flush()
            os._exit(status)
    failed = None
    while ranks:
        pid, status = os.wait()
        rank = ranks.pop(pid)
        if status and failed is None:
            failed = rank, os.waitstatus_to_exitcode(status)
            for each in ranks:
                os.kill(each, signal.SIGKILL)
    return failed


with os.fdopen(os.dup(1), "w") as answers:
    os.dup2(2, 1)
    for name in LOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    assert not {"deepspeed", "dsfix"} & sys.modules.keys()
    gc.freeze()
    for line in sys.stdin:
        print(json.dumps(ranks_of(*json.loads(line))), file=answers, flush=True)
