"""The files of a DeepSpeed repository, in which diffs are applied and tests are run."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from dsfix.cli.exits import Complaint
from dsfix.lab.isolation import isolated
from matrix import environments

_INSIDE = Path(__file__).with_name("inside")
# what the package and its tests consist of; the rest of the repository is large
_PARTS = ("accelerator", "bin", "csrc", "deepspeed", "op_builder", "requirements", "setup.py", "tests", "version.txt")


class Seen(NamedTuple):
    """What pytest said of one test. outcome: passed, failed, skipped, or "not run"; detail: the first line of why."""

    outcome: str
    detail: str = ""


def copy(clone: Path, directory: Path) -> None:
    """The files of the clone's HEAD. Raises Complaint if it is no clone of DeepSpeed."""
    done = subprocess.run(["git", "-C", str(clone), "archive", "--format=tar", "HEAD", *_PARTS], capture_output=True)
    if done.returncode != 0:
        raise Complaint(f"{clone} is no clone of DeepSpeed: {done.stderr.decode().strip().splitlines()[0]}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(directory)


def pull_requests(tree: Path, scratch: Path, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """id -> the fields of its PullRequest, for these patches, or all whose bug the tree has."""
    command = [sys.executable, str(_INSIDE / "pull_requests.py"), *ids]
    done = subprocess.run(command, cwd=scratch, env=_environment(tree, scratch), capture_output=True, text=True)
    if done.returncode != 0:
        raise Complaint(f"the pull requests cannot be written: {done.stderr.strip().splitlines()[-1]}")
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


def apply(tree: Path, diff: str, *options: str) -> str:
    """`git apply`; the last line of its complaint, "" if there is none."""
    done = subprocess.run(["git", "apply", *options], cwd=tree, input=diff, capture_output=True, text=True)
    return ["", *done.stderr.strip().splitlines()][-1]


def test(tree: Path, scratch: Path, path: str, seconds: float) -> Seen:
    """Runs a test file that has one test."""
    results = scratch / "results.xml"
    results.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "forked_ranks", "-p", "no:cacheprovider", "-p", "no:xdist"]
    environment = _environment(tree, scratch)
    environment["PYTHONPATH"] = os.pathsep.join([str(_INSIDE), environment["PYTHONPATH"]])
    with subprocess.Popen(
        [*command, f"--junitxml={results}", path],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=tree,
        env=environment,
        start_new_session=True,
    ) as process:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its ranks
    if not results.is_file():
        return Seen("not run", "pytest did not finish")
    [case] = ElementTree.parse(results).iter("testcase")
    for told in case:
        if told.tag in ("failure", "error", "skipped"):
            first = [*(told.get("message") or "").strip().splitlines(), ""][0]
            shortened = textwrap.shorten(first, 160, placeholder=" …")
            return Seen("skipped" if told.tag == "skipped" else "failed", shortened)
    return Seen("passed")


def _environment(tree: Path, scratch: Path) -> dict[str, str]:
    """That of upstream's CI on the CPU, or a GPU if there is one."""
    environment = isolated(scratch, path=tree)
    environment.update(DS_DISABLE_REUSE_DIST_ENV="1", PYTHONPYCACHEPREFIX=str(scratch / "bytecode"))
    del environment["PYTHONDONTWRITEBYTECODE"]
    if not environments.gpu():
        environment.update(DS_ACCELERATOR="cpu", LOCAL_SIZE="4")
    return environment
