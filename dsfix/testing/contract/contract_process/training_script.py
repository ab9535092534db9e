"""A training script that starts other processes; each writes what is in effect to a file."""

import dsfix  # isort: skip  # must be first
import importlib
import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

GIVEN = json.loads(os.environ["CONTRACT_JOB"])


def record(kind: str) -> None:
    sys.path.append(GIVEN["packages"])
    describe = importlib.import_module("contract_process.describe")
    errors = {}
    for name in GIVEN["modules"]:
        try:
            importlib.import_module(name)
        except Exception as error:
            errors[name] = f"{type(error).__name__}: {error}"
    result = {
        "kind": kind,
        "pid": os.getpid(),
        "reports": {each.id: [each.outcome.value, each.reason] for each in dsfix.report()},
        "seen": describe.seen(GIVEN["changes"]),
        "errors": errors,
    }
    Path(GIVEN["results"], f"{kind}.json").write_text(json.dumps(result), encoding="utf-8")


def fork(kind: str) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            record(kind)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def main() -> None:
    fork("forked before the import")
    record("the job")
    fork("forked after the import")
    spawned = multiprocessing.get_context("spawn").Process(target=record, args=("spawned",))
    spawned.start()
    spawned.join()
    subprocess.run([sys.executable, __file__, "a new program"], check=False)


if __name__ == "__main__":
    record(sys.argv[1]) if len(sys.argv) > 1 and Path(sys.argv[0]) == Path(__file__) else main()
