"""SIGKILL at a random moment while patches are applied."""

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

WRITTEN_ANEW = {"*.pyc": 0.1, "learned-*.bin": 0.5}  # of these files, by each process


def kills(options: argparse.Namespace) -> str:
    """Kills so many processes."""
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="dsfix-soak-") as name:
        scratch = Path(name)
        wanted = start(scratch)  # writes all bytecode
        began = time.monotonic()
        start(scratch)
        duration = time.monotonic() - began
        killed, left = 0, Counter[str]()
        while killed < options.kills:
            for pattern, share in WRITTEN_ANEW.items():
                for file in list(scratch.rglob(pattern)):
                    if chance.random() < share:
                        file.unlink()
            child = forked(imports, scratch)
            time.sleep(chance.random() * duration)
            os.kill(child, signal.SIGKILL)
            killed += os.waitpid(child, 0)[1] == signal.SIGKILL  # and not over before
            left.update(leftovers(scratch))
            found = start(scratch)
            if found != wanted:
                raise Broken(f"the next start is another: {dict(found.items() ^ wanted.items())}")
    applied = sum(outcome == "applied" for outcome in wanted.values())
    remains = ", ".join(f"{count} {what}" for what, count in left.items()) or "nothing"
    return (
        f"{killed} processes killed at a random moment of the {duration:.1f} s in which they import dsfix and\n"
        "DeepSpeed, torch being there: no report, bytecode or file of a cache was half-written, and the next start\n"
        f"applied the same {applied} patches each time. Left behind: {remains}."
    )


def imports() -> None:
    import dsfix  # noqa: F401 isort: skip
    import deepspeed  # noqa: F401


def start(scratch: Path) -> dict[str, str]:
    """A start that is not disturbed: what became of each patch."""
    reports = scratch / "reports"
    shutil.rmtree(reports, ignore_errors=True)
    wait(forked(imports, scratch), "a start")
    (report,) = reports.iterdir()
    return {each["id"]: each["outcome"] for each in json.loads(report.read_bytes())["patches"]}


def leftovers(scratch: Path) -> Iterator[str]:
    """Looks at all files; those that a killed process has not come to rename, which nobody reads, are told of.

    Raises Broken where a file under its own name is not whole.
    """
    for file in filter(Path.is_file, scratch.rglob("*")):
        try:
            if file.name.endswith(".partial"):
                yield "unfinished file under another name"
                file.unlink()
            elif file.suffix == ".json":
                json.loads(file.read_bytes())
            elif file.suffix == ".pyc":
                marshal.loads(file.read_bytes()[16:])
            elif file.suffix == ".bin":
                digest, content = file.read_bytes()[:16], file.read_bytes()[16:]
                if hashlib.blake2b(content, digest_size=16).digest() != digest:
                    raise ValueError("the digest is another")
            elif ".pyc." in file.name:
                yield "unfinished bytecode under another name (of Python's import)"
                file.unlink()
            else:
                raise ValueError("nobody should have written it")
        except (ValueError, EOFError, TypeError) as error:
            raise Broken(f"{file.relative_to(scratch)} is half-written: {error}") from None
