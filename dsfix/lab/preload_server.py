"""``preload_server.py SOCKET DEVICE [SCRIPT]...``: imports torch, then forks a rank for each preload_rank.py.

Prints the names of the imported modules as JSON. Ends when its standard input closes.
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

# the second is imported by the first optimizer, the third by ZeRO in DeepSpeed 0.18 and later, the fourth by offload
_PRELOADED = ("torch", "torch._dynamo", "torch._inductor.compile_fx", "torch.utils.cpp_extension")
_POLL = 0.02  # seconds


def _emulated_device() -> Any:
    """Loads the device with dsfix's lab, then removes dsfix's modules: each rank imports its own."""
    importlib.import_module("dsfix.lab.cuda").load()
    [native] = sys.modules["dsfix.lab.cuda.load"]._loaded
    for name in [name for name in sys.modules if name.partition(".")[0] == "dsfix"]:
        del sys.modules[name]
    return native


def _hand_over(native: Any) -> None:
    importlib.import_module("dsfix.lab.cuda")
    sys.modules["dsfix.lab.cuda.load"]._loaded.append(native)


def _describe_processor_once(kept: Path) -> None:
    """Let one rank ask for cpuinfo's description, which takes a second, and the others read it from `kept`."""
    try:
        cpuinfo: Any = importlib.import_module("cpuinfo")
    except ImportError:  # DeepSpeed's optimizers for offload need it, others do not
        return
    ask = cpuinfo.get_cpu_info

    def get_cpu_info() -> dict[str, Any]:
        if not kept.exists():
            written = kept.with_suffix(f".{os.getpid()}")
            written.write_text(json.dumps(ask()), encoding="utf-8")
            written.replace(kept)
        described: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
        return described

    cpuinfo.get_cpu_info = get_cpu_info


def _serve(listener: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Returns the request and file descriptors in each forked rank; None in this process, at the end."""
    while 0 not in select.select([listener.fileno(), 0], [], [])[0]:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            return _keep(connection)
        connection.close()
        _reap()
    _reap()
    return None


def _reap() -> None:
    """Waits for the keepers that have ended, so that their ranks' times count among this process's children's."""
    with contextlib.suppress(ChildProcessError):  # no child is left
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def _keep(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork the rank and wait until it or its client ends; returns only in the rank."""
    descriptors = socket.recv_fds(connection, 1, 2)[1]
    request = json.loads(connection.makefile().readline())
    rank = os.fork()
    if rank == 0:
        connection.close()
        return request, descriptors
    ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
    while not os.waitid(os.P_PID, rank, ended) and not select.select([connection.fileno()], [], [], _POLL)[0]:
        pass
    # the rank is not reaped yet, so these ids still belong to it and to processes it has left behind
    os.kill(rank, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(rank, signal.SIGKILL)
    returncode = os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1])
    with contextlib.suppress(OSError):
        connection.sendall(f"{returncode}\n".encode())
    os._exit(0)


def _become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Makes this process as similar to a fresh one as possible."""
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
    del sys.path[0]  # this directory
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # DeepSpeed through 0.17 logs to standard output on import
    # inductor would look for a GPU's driver; not `hide_triton`, because dsfix is imported by the ranks
    sys.modules.setdefault("triton", None)  # type: ignore[arg-type]
    native = _emulated_device() if device == "cuda" else None
    for name in _PRELOADED:
        importlib.import_module(name)
    _describe_processor_once(Path(path).with_name("processor.json"))
    for script in scripts:
        if native is not None and script == scripts[-1]:
            _hand_over(native)  # imports dsfix; an earlier script prepares what must precede that
        runpy.run_path(script)
    if len(os.listdir("/proc/self/task")) > 1:
        print("torch has started threads, which a fork would lose", file=sys.stderr)
        return 1
    gc.collect()
    gc.freeze()  # otherwise each rank's collections would traverse all of torch and copy its pages
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
    os._exit(status)  # a regular interpreter shutdown takes as long as the work


if __name__ == "__main__":
    sys.exit(main())
