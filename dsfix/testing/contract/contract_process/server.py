"""A process that imports some modules and forks for every request: a JSON line in, a JSON line out.

Not dsfix/lab/preload_server.py: these children fork further for import orders, and need no devices or signals.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any


def main() -> None:
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # so that this package, not its files, is importable
    steps = importlib.import_module("contract_process.steps")
    sys.path.pop(0)
    for name in sys.argv[1:]:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        for line in sys.stdin:
            print(json.dumps(_forked(steps, json.loads(line))), file=answers, flush=True)


def _forked(steps: Any, request: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="contract-") as directory:
        result, output = Path(directory, "result"), Path(directory, "output")
        pid = os.fork()
        if pid == 0:
            _work(steps, request, result, output)
        ended = _waited_for(pid, request["timeout"])
        text = output.read_text(encoding="utf-8", errors="replace") if output.exists() else ""
        if result.exists():
            return {"result": json.loads(result.read_text(encoding="utf-8")), "output": text}
        return {"error": f"{ended}\n{text[-4000:]}", "output": text}


def _waited_for(pid: int, timeout: int) -> str:
    def expired(*_: Any) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)

    signal.signal(signal.SIGALRM, expired)
    signal.alarm(timeout)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    signal.alarm(0)
    return f"the process ended with exit status {status} (timeout {timeout} s)"


def _work(steps: Any, request: dict[str, Any], result: Path, output: Path) -> None:
    status = 1
    try:
        os.setpgid(0, 0)
        with open(output, "wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.environ.update(request["environment"])
        os.environ["PYTHONPATH"] = os.pathsep.join([*request["path"], *filter(None, [os.environ.get("PYTHONPATH")])])
        sys.path[:0] = request["path"]
        importlib.invalidate_caches()
        done = steps.run(**request["arguments"])
        result.with_suffix(".partial").write_text(json.dumps(done), encoding="utf-8")
        os.replace(result.with_suffix(".partial"), result)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
