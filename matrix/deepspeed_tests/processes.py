"""Runs DeepSpeed's tests with pytest in separate processes, without or with dsfix, each test with a time limit."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsfix.cli.exits import CommandError
from dsfix.lab.cuda.compiling import locked
from dsfix.lab.isolation import isolated_environment
from dsfix.settings import cache_directory
from matrix import environments

_INSIDE = Path(__file__).with_name("inside")
_COPIED = ("unit", "conftest.py", "pytest.ini")
_START = 1800.0  # seconds until the first test; imports take long on a busy machine
_END = 20.0  # seconds after the last one


@dataclass(frozen=True)
class Ended:
    """A finished test. outcome: passed, skipped, failed, error, xfailed, xpassed, timeout or died."""

    test: str
    outcome: str
    detail: str = ""


class Session(ExitStack):
    """The tests of `directory`, a clone of DeepSpeed or its `tests`, on one release. A context manager.

    The tests are copied, because they write files and must not find the clone's DeepSpeed. patches: those enabled with
    dsfix, instead of the default ones. Raises CommandError if the directory has no tests.
    """

    def __init__(self, directory: Path, release: str, seconds: float, ranks: int, patches: Sequence[str] = ()) -> None:
        super().__init__()
        tests = directory / "tests" if (directory / "tests" / "unit").is_dir() else directory
        if not (tests / "unit").is_dir():
            raise CommandError(f"{directory} has no tests/unit: a clone of DeepSpeed at the release's tag is needed")
        self._source, self._seconds, self._ranks, self._patches = tests, seconds, ranks, patches
        self._path = environments.installed(release)
        self._extensions = cache_directory() / "upstream" / release
        self.versions: dict[str, str] = {}

    def __enter__(self) -> Session:
        self._extensions.parent.mkdir(parents=True, exist_ok=True)
        self.enter_context(locked(self._extensions.with_name(f"{self._extensions.name}.lock")))
        self._scratch = Path(self.enter_context(tempfile.TemporaryDirectory(prefix="dsfix-upstream-")))
        self.tests = self._scratch / "tests"
        self.tests.mkdir()
        for name in _COPIED:
            source = self._source / name
            if source.is_dir():
                shutil.copytree(source, self.tests / name)
            elif source.is_file():
                shutil.copy(source, self.tests / name)
        return self

    def collect(self, files: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        """The tests' ids, and file -> why it cannot be collected; cached. Raises CommandError if there are none."""
        cache_file = self._extensions / f"collected-{self._digest(files)}.json"
        if cache_file.is_file():
            collected: dict[str, Any] = json.loads(cache_file.read_text(encoding="utf-8"))
            return collected["found"], collected["failed"]
        tests, failed = self._collect(files)
        cache_file.parent.mkdir(exist_ok=True)
        cache_file.write_text(json.dumps({"found": tests, "failed": failed}), encoding="utf-8")
        return tests, failed

    def _collect(self, files: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        ids: list[str] = []
        failed: dict[str, str] = {}
        with _Process([*_pytest(), "--collect-only", *files], self._environment("without"), self.tests) as process:
            for event in process.events(lambda: _START):
                ids += event.get("collected", ())
                if "uncollected" in event:
                    failed[event["uncollected"]] = event["detail"]
            if not ids and not failed:
                raise CommandError(f"nothing was collected: {process.tail()}")
        return ids, failed

    def _digest(self, files: Sequence[str]) -> str:
        """A digest of everything that determines the tests' ids, except installed packages."""
        digest = hashlib.sha256("\n".join(files).encode())
        for path in sorted(self.tests.rglob("*.py")):
            digest.update(path.read_bytes())
        return digest.hexdigest()[:16]

    def build(self) -> None:
        """Compile the operators that tests load, once."""
        if (self._extensions / "built").is_file():
            return
        print("compiling DeepSpeed's operators", flush=True)
        self._extensions.mkdir(exist_ok=True)
        self._unlock()
        command = [sys.executable, str(_INSIDE / "upstream_operators.py")]
        with _Process(command, self._environment("without"), self._scratch) as process:
            process.wait()
        (self._extensions / "built").touch()

    def run(self, variant: str, tests: Sequence[str], left_out: Sequence[str] = ()) -> Iterator[Ended]:
        """Yield each test as it ends. If a test crashes or hangs its process, a new one continues with the others.

        variant: "without" dsfix, or "with" it but without the patches `left_out`. Raises CommandError if tests cannot
        run.
        """
        rest = list(tests)
        while rest:
            before = len(rest)
            for ended in self._some(variant, rest, left_out):
                rest.remove(ended.test)
                yield ended
            if len(rest) == before:
                raise CommandError(f"tests cannot be run {variant} dsfix: {', '.join(rest[:3])}")

    def _some(self, variant: str, tests: Sequence[str], left_out: Sequence[str]) -> Iterator[Ended]:
        self._unlock()
        id_file = self._scratch / "asked"
        id_file.write_text("\n".join(tests) + "\n", encoding="utf-8")
        environment = self._environment(variant)
        environment.update(UPSTREAM_TESTS=str(id_file), DSFIX_SKIP=",".join(left_out))
        files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
        running, done = "", 0
        begun = time.monotonic()
        uncollected: dict[str, str] = {}
        collected: set[str] = set()
        with _Process([*_pytest(), *files], environment, self.tests) as process:

            def limit() -> float:
                allowed = self._seconds if running else _START if not done else _END
                return begun + allowed - time.monotonic()

            for event in process.events(limit):
                begun = time.monotonic()
                self.versions.update(event.get("versions", {}))
                if "uncollected" in event:
                    uncollected[event["uncollected"]] = event["detail"]
                if "start" in event:
                    running = event["start"]
                    collected.add(running)
                if "end" in event:
                    running, done = "", done + 1
                    yield Ended(event["end"], event["outcome"], event["detail"])
            if running:
                late = process.late
                outcome, detail = ("timeout", f"not finished after {self._seconds:g} s") if late else ("died", "")
                yield Ended(running, outcome, detail)
        for test in tests:
            why = uncollected.get(test.partition("::")[0])
            if why is not None and test not in collected:
                yield Ended(test, "error", why)

    def _environment(self, variant: str) -> dict[str, str]:
        environment = isolated_environment(self._scratch, path=self._path)
        environment.update(
            DS_ACCELERATOR="cpu",
            LOCAL_SIZE=str(self._ranks),
            DS_DISABLE_REUSE_DIST_ENV="1",
            OMP_NUM_THREADS="1",  # as launchers set it: the ranks share the processor
            DS_UNITTEST_TIMEOUT="100000",  # this module enforces the limit and continues with the other tests
            TORCH_EXTENSIONS_DIR=str(self._extensions),
            TOKENIZERS_PARALLELISM="false",
        )
        environment.update(DSFIX_SKIP="", DSFIX_ONLY=",".join(self._patches))
        environment["PYTHONPATH"] = os.pathsep.join([str(_INSIDE), environment["PYTHONPATH"]])
        return environments.with_dsfix(environment) if variant == "with" else environment

    def _unlock(self) -> None:
        """Remove locks left by builds that were killed, on which the next build would wait forever."""
        for path in self._extensions.rglob("lock"):
            path.unlink()


def _pytest() -> list[str]:
    plugins = ["-p", "upstream_plugin", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:randomly"]
    return [sys.executable, "-m", "pytest", "-q", *plugins, "--continue-on-collection-errors"]


class _Process:
    """A process that reports events on a pipe; killed at the end with its whole session."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], directory: Path) -> None:
        self._command, self._environment, self._directory = command, environment, directory
        self.late = False

    def __enter__(self) -> _Process:
        self._log = tempfile.TemporaryFile("w+", errors="replace")
        self._pipe, writing = os.pipe()
        try:
            self._process = subprocess.Popen(
                self._command,
                env={**self._environment, "UPSTREAM_PIPE": str(writing)},
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                pass_fds=(writing,),
                start_new_session=True,
            )
        finally:
            os.close(writing)
        return self

    def __exit__(self, *_: Any) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._pipe)
        self._log.close()

    def events(self, limit: Any) -> Iterable[dict[str, Any]]:
        """The events, until the process ends or sends none for `limit()` seconds."""
        buffered = b""
        while True:
            ready = select.select([self._pipe], [], [], max(0.0, limit()))[0]
            if not ready:
                self.late = True
                return
            data = os.read(self._pipe, 65536)
            if not data:
                return
            *lines, buffered = (buffered + data).split(b"\n")
            for line in lines:
                yield json.loads(line)

    def wait(self) -> None:
        self._process.wait()

    def tail(self) -> str:
        self._log.seek(0)
        return " ".join(self._log.read()[-400:].split())
