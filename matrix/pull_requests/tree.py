"""A copy of a clone's last commit, in which diffs are applied and tests are run."""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import signal
import subprocess
import sys
import tarfile
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from dsfix.cli.exits import Complaint
from dsfix.lab.isolation import isolated
from matrix import environments

#: what the package and its tests consist of; the rest of the repository is large
_PARTS = ("accelerator", "bin", "csrc", "deepspeed", "op_builder", "requirements", "setup.py", "tests", "version.txt")


@dataclass(frozen=True)
class Seen:
    """What pytest said of one test. outcome: passed, failed, skipped, or "not run"; detail: the first line of why."""

    outcome: str
    detail: str = ""


class Tree:
    """The files of the clone's HEAD in `directory`. Raises Complaint if it is no clone of DeepSpeed."""

    def __init__(self, clone: Path, directory: Path, seconds: float) -> None:
        self.directory, self._seconds = directory / "DeepSpeed", seconds
        self._scratch = directory
        self._server: subprocess.Popen[bytes] | None = None
        done = _git(clone, "archive", "--format=tar", "HEAD", *_PARTS)
        if done.returncode != 0:
            raise Complaint(f"{clone} is no clone of DeepSpeed: {done.stderr.decode().strip().splitlines()[0]}")
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            archive.extractall(self.directory)
        self.name = _git(clone, "describe", "--tags", "--always").stdout.decode().strip()

    def patches(self) -> list[str]:
        """The ids of the patches whose bug the tree has, or may have if they are off by default."""
        listed: list[dict[str, str]] = self._dsfix("list")["patches"]
        return [each["id"] for each in listed if each["outcome"] in ("pending", "disabled")]

    def diff(self, patch_id: str) -> dict[str, Any]:
        """What `python -m dsfix diff ID --upstream --json` prints."""
        return self._dsfix("diff", patch_id, "--upstream")

    def _dsfix(self, *arguments: str) -> dict[str, Any]:
        """The JSON that this command prints in the tree's top directory, where it is about the tree."""
        command = [sys.executable, "-m", "dsfix", *arguments, "--json"]
        done = subprocess.run(command, cwd=self.directory, env=self._environment(), capture_output=True, text=True)
        if not done.stdout:
            raise Complaint(f"{' '.join(command[1:])}: {done.stderr.strip()}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def apply(self, diff: str, *options: str) -> str:
        """`git apply`; its complaint, "" if there is none."""
        done = subprocess.run(
            ["git", "apply", *options], cwd=self.directory, input=diff, capture_output=True, text=True
        )
        return done.stderr.strip()

    def test(self, paths: Sequence[str]) -> dict[str, Seen]:
        """Runs the test files in one pytest; path -> what it said."""
        results = self._scratch / "results.xml"
        results.unlink(missing_ok=True)
        arguments = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--junitxml={results}", *paths]
        server = self._server = self._server if self._server and self._server.poll() is None else self._start(results)
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(arguments).encode() + b"\n")
        server.stdin.flush()
        child = int(server.stdout.readline())
        if not select.select([server.stdout], [], [], self._seconds * len(paths))[0]:
            os.killpg(child, signal.SIGKILL)
        server.stdout.readline()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # its ranks
        seen = _read(results) if results.is_file() else {}
        return {path: seen.get(Path(path).stem, Seen("not run", "pytest did not finish")) for path in paths}

    def close(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server.wait()

    def _start(self, results: Path) -> subprocess.Popen[bytes]:
        script = str(Path(__file__).with_name("server.py"))
        command = (
            [sys.executable, "-P", script, str(results)] if sys.version_info >= (3, 11) else [sys.executable, script]
        )
        return subprocess.Popen(
            command,
            cwd=self.directory,
            env=self._environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )

    def _environment(self) -> dict[str, str]:
        """That of upstream's CI on the CPU, or a GPU if there is one."""
        environment = isolated(self._scratch, path=self.directory)
        environment.update(DS_DISABLE_REUSE_DIST_ENV="1", PYTHONPYCACHEPREFIX=str(self._scratch / "bytecode"))
        del environment["PYTHONDONTWRITEBYTECODE"]
        if not environments.gpu():
            environment.update(DS_ACCELERATOR="cpu", LOCAL_SIZE="4")
        return environment


def _git(clone: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(clone), *arguments], capture_output=True)


def _read(results: Path) -> dict[str, Seen]:
    """Name of the test's file -> what pytest said."""
    seen = {}
    for case in ElementTree.parse(results).iter("testcase"):
        told = next((each for each in case if each.tag in ("failure", "error", "skipped")), None)
        name = case.get("classname", "").split(".")[-2]
        if told is None:
            seen[name] = Seen("passed")
        else:
            first = (told.get("message") or "").strip().splitlines()
            outcome = "skipped" if told.tag == "skipped" else "failed"
            seen[name] = Seen(outcome, textwrap.shorten(first[0], 160, placeholder=" …") if first else "")
    return seen
