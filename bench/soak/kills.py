"""SIGKILL at random moments while patches are applied."""

from __future__ import annotations

import argparse
import hashlib
import json
import marshal
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from children import Broken, forked, wait

REMOVED = {"*.pyc": 0.1, "learned-*.bin": 0.5}  # share of these files that each process has to write again


def kills(options: argparse.Namespace) -> str:
    """Kill the processes and return the report. Raises Broken."""
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="dsfix-soak-") as name:
        scratch = Path(name)
        wanted = start(scratch)  # writes all bytecode
        began = time.monotonic()
        start(scratch)
        duration = time.monotonic() - began
        killed, left = 0, Counter[str]()
        while killed < options.kills:
            for pattern, share in REMOVED.items():
                for file in list(scratch.rglob(pattern)):
                    if chance.random() < share:
                        file.unlink()
            child = forked(imports, scratch)
            time.sleep(chance.random() * duration)
            os.kill(child, signal.SIGKILL)
            killed += os.waitpid(child, 0)[1] == signal.SIGKILL  # otherwise it ended before
            left.update(leftovers(scratch))
            found = start(scratch)
            if found != wanted:
                raise Broken(f"the next start differs: {dict(found.items() ^ wanted.items())}")
    applied = sum(outcome == "applied" for outcome in wanted.values())
    remains = ", ".join(f"{count} {what}" for what, count in left.items()) or "nothing"
    return (
        f"{killed} processes were killed, each at a random moment of the {duration:.1f} s in which it imports dsfix\n"
        "and DeepSpeed. No report, bytecode or cache file was half-written, and the next start always applied\n"
        f"the same {applied} patches. Left behind: {remains}."
    )


def imports() -> None:
    import dsfix  # noqa: F401 isort: skip
    import deepspeed  # noqa: F401


def start(scratch: Path) -> dict[str, str]:
    """The outcome of each patch in an undisturbed start."""
    reports = scratch / "reports"
    shutil.rmtree(reports, ignore_errors=True)
    wait(forked(imports, scratch), "a start")
    (report,) = reports.iterdir()
    return {each["id"]: each["outcome"] for each in json.loads(report.read_bytes())["patches"]}


def leftovers(scratch: Path) -> Iterator[str]:
    """Check all files, and yield and remove temporary ones that a killed process has not renamed.

    Raises Broken if a file under its final name is incomplete.
    """
    for file in filter(Path.is_file, scratch.rglob("*")):
        try:
            if file.name.endswith(".partial"):
                yield "temporary files"
                file.unlink()
            elif file.suffix == ".json":
                json.loads(file.read_bytes())
            elif file.suffix == ".pyc":
                marshal.loads(file.read_bytes()[16:])
            elif file.suffix == ".bin":
                digest, content = file.read_bytes()[:16], file.read_bytes()[16:]
                if hashlib.blake2b(content, digest_size=16).digest() != digest:
                    raise ValueError("wrong digest")
            elif ".pyc." in file.name:
                yield "temporary bytecode files from Python's own import"
                file.unlink()
            else:
                raise ValueError("unexpected file")
        except (ValueError, EOFError, TypeError) as error:
            raise Broken(f"{file.relative_to(scratch)} is half-written: {error}") from None
