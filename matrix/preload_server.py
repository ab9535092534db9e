"""``preload_server.py SOCKET DEVICE [SCRIPT]...``: imports torch, then forks a rank whenever preload_rank.py asks.

Prints the names of the modules that it has, as JSON. Ends when its standard input closes.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

# the second is imported with the first optimizer, the third by DeepSpeed 0.18 and later with ZeRO
_PRELOADED = ("torch", "torch._dynamo", "torch._inductor.compile_fx")


def _emulated_device() -> Any:
    """Load the device with dsfix's lab; no module of dsfix stays, a rank imports its own."""
    importlib.import_module("dsfix.lab.cuda").load()
    [native] = sys.modules["dsfix.lab.cuda.load"]._loaded
    for name in [name for name in sys.modules if name.partition(".")[0] == "dsfix"]:
        del sys.modules[name]
    return native


def _hand_over(native: Any) -> None:
    """Let the dsfix that is imported from now on know of the device."""
    importlib.import_module("dsfix.lab.cuda")
    sys.modules["dsfix.lab.cuda.load"]._loaded.append(native)


def _serve(listener: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The request and the file descriptors, in a process that is to be its rank; None, in this one, at the end."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the keepers
    while 0 not in select.select([listener.fileno(), 0], [], [])[0]:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            return _keep(connection)
        connection.close()
    return None


def _keep(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork the rank and stay until it ends or the other side does; returns in the rank only."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    descriptors = socket.recv_fds(connection, 1, 2)[1]
    request = json.loads(connection.makefile().readline())
    rank = os.fork()
    if rank == 0:
        connection.close()
        return request, descriptors
    ended = os.pidfd_open(rank)
    select.select([connection.fileno(), ended], [], [])
    # not reaped yet, so that the numbers are this rank's: it, or what it has left behind
    os.kill(rank, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(rank, signal.SIGKILL)
    returncode = os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1])
    with contextlib.suppress(OSError):
        connection.sendall(f"{returncode}\n".encode())
    os._exit(0)


def _become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Make this process what a fresh one would be, as far as that goes."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    for number, descriptor in enumerate([null, *descriptors]):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["cwd"])
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ.clear()
    os.environ.update(request["environment"])
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [*paths, *(path for path in sys.path if path not in before)]
    sys.argv = ["-c", *request["argv"]]
    sys.modules["__main__"] = ModuleType("__main__")
    tempfile.tempdir = None
    importlib.invalidate_caches()
    importlib.import_module("numpy").random.seed()  # Python's own generator is seeded by fork


def main() -> int:
    path, device, *scripts = sys.argv[1:]
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    importlib.import_module("matrix")  # for the ranks that run one of its modules; leaves sys.path again
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # DeepSpeed 0.17 and earlier log to standard output while they are imported
    native = _emulated_device() if device == "cuda" else None
    for name in _PRELOADED:
        importlib.import_module(name)
    for script in scripts:
        if native is not None and script == scripts[-1]:
            _hand_over(native)  # imports dsfix: what has to be there before it is in an earlier script
        runpy.run_path(script)
    if len(os.listdir("/proc/self/task")) > 1:
        print("torch has started threads, which a fork would lose", file=sys.stderr)
        return 1
    gc.collect()
    gc.freeze()  # or each rank's collections would look through all of torch, and copy its pages
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        with answer:
            print(json.dumps(sorted(sys.modules)), file=answer)
        job = _serve(listener)
    if job is None:
        return 0
    _become(*job)
    rank = importlib.import_module(sys.argv.pop(1))  # imports dsfix first
    if native is not None and not scripts:
        _hand_over(native)
    try:
        status: int = rank.main(*sys.argv[1:])
    except BaseException:
        traceback.print_exc()
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # taking all modules apart takes as long as the work


if __name__ == "__main__":
    sys.exit(main())
