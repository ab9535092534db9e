"""`python -m matrix.framework_tests run NAME DIR`: a framework's own DeepSpeed tests, without dsfix and with it."""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsfix.cli.run import with_dsfix
from dsfix.engine.cache import cache_directory
from dsfix.lab.isolation import isolated

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RECORD = HERE / "record.json"
PAGE = ROOT / "docs" / "framework-tests.md"
MACHINE = ROOT / "demo" / "machine"  # a GPU, or the emulated device: the tests are skipped without
COMMAND = "python -m tox exec -e patches-0.18.9 -- python -m matrix.framework_tests"
VARIANTS = ("without", "with")
TROUBLE = ("conflict", "drifted", "failed", "too-late")
BADNESS = {"passed": 0, "skipped": 1, "failed": 2, "died": 3}
_NEEDS = "parameterized==0.9.0"  # which the tests import; it goes into no environment
_LENGTH = 160
_RANKS_ERROR = re.compile(r"\[rank\d+\]: (\w+Error: .*)")


@dataclass(frozen=True)
class Suite:
    """paths: below the framework's directory. left_out: part of a test's name -> why."""

    paths: tuple[str, ...]
    left_out: dict[str, str] = field(default_factory=dict)


_MRPC = "the data set MRPC and a BERT from the hub"
SUITES = {
    "accelerate": Suite(
        (
            "tests/deepspeed/test_deepspeed.py",
            "tests/deepspeed/test_deepspeed_gradient_accumulation.py",
            "tests/deepspeed/test_deepspeed_multiple_model.py",
            "tests/deepspeed/test_alst_ulysses_sp.py",
        ),
        {
            "test_basic_run": _MRPC,
            "test_checkpointing": _MRPC,
            "test_lr_scheduler": _MRPC,
            "test_peak_memory_usage": "skips itself with DeepSpeed after 0.12.6",
            "test_performance": _MRPC,
            "test_train_multiple_models": _MRPC,
        },
    ),
}
NOT_RUN = (
    ("accelerate", "`test_utils/scripts` in the package", f"what the tests above do not run needs {_MRPC}"),
    ("accelerate", "`tests/test_fp8.py`", "transformer_engine, on a GPU"),
    (
        "peft",
        "`TestUnshardedLoRASaveUnderZeRO3`, of its source distribution",
        "asks torch for the process group of a GPU without naming gloo: NCCL, which the build for the CPU lacks",
    ),
    ("transformers", "all", "neither the package nor its source distribution has its DeepSpeed tests"),
    ("trl", "all", "neither the package nor its source distribution has tests"),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m matrix.framework_tests", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    runs = commands.add_parser("run", help="run a framework's tests that are not in the record, on both sides")
    runs.add_argument("framework", choices=SUITES)
    runs.add_argument("directory", type=Path, metavar="DIR", help="a clone of it")
    runs.add_argument("--of", required=True, metavar="TAG", help="the tag, or commit, of the tests")
    runs.add_argument("--again", action="store_true", help="also what is in the record")
    runs.add_argument("--seconds", type=float, default=1800.0, metavar="S", help="for one file of tests")
    runs.set_defaults(action=_run)
    writing = commands.add_parser("docs", help=f"write docs/{PAGE.name}")
    writing.add_argument("--check", action="store_true", help="write nothing; exit status 1 where it is stale")
    writing.set_defaults(action=_docs)
    options = parser.parse_args()
    status: int = options.action(options)
    return status


def _run(options: argparse.Namespace) -> int:
    record = _read()
    told = record.setdefault(options.framework, {})
    names = ("deepspeed", "torch", "transformers", options.framework)
    new = {"tests": options.of, "versions": {name: importlib.metadata.version(name) for name in names}}
    if options.again or new != {name: told.get(name) for name in new}:
        told.clear()
    told.update(new, date=datetime.date.today().isoformat())
    runs, applied = told.setdefault("runs", {}), told.setdefault("applied", [])
    for path in SUITES[options.framework].paths:
        for variant in VARIANTS:
            if _done(runs, path, variant):
                continue
            with tempfile.TemporaryDirectory(prefix="dsfix-framework-tests-") as scratch:
                session = _Session(Path(scratch), options, variant)
                for test, outcome, why in session.tests(path):
                    run = runs.setdefault(f"{path}::{test}", {"why": {}})
                    run[variant] = outcome
                    if why:
                        run["why"][variant] = why
                here, trouble = session.patches()
            if (variant == "with") != bool(here) or trouble:
                print(f"{path}, {variant} dsfix: {len(here)} patches applied, in trouble: {trouble}", file=sys.stderr)
                return 1
            applied[:] = sorted({*applied, *here})
            RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return _complain(record)


def _done(runs: dict[str, dict[str, Any]], path: str, variant: str) -> bool:
    return any(variant in run for test, run in runs.items() if test.startswith(f"{path}::"))


class _Session:
    """A suite's tests in a directory of their own, with the models that they ask for."""

    def __init__(self, scratch: Path, options: argparse.Namespace, variant: str) -> None:
        self._suite, self._seconds = SUITES[options.framework], options.seconds
        self._work, self._reports = scratch / "work", scratch / "reports"
        shutil.copytree(options.directory / "tests", self._work / "tests")
        extra = scratch / "extra"
        install = ["uv", "pip", "install", "--quiet", "--no-deps", "--target", str(extra), _NEEDS]
        subprocess.run([*install, "--python", sys.executable], check=True)
        extensions = cache_directory() / "framework-tests"
        for lock in extensions.rglob("lock"):
            lock.unlink()  # of a build that was killed, on which the next would wait for ever
        environment = isolated(scratch)
        environment.update(
            GLOO_SOCKET_IFNAME="lo",
            PATH=os.pathsep.join([os.path.dirname(sys.executable), environment["PATH"]]),
            PYTHONPATH=os.pathsep.join([str(MACHINE), str(extra), environment["PYTHONPATH"]]).rstrip(os.pathsep),
            RUN_SLOW="1",
            TORCH_EXTENSIONS_DIR=str(extensions),
        )
        subprocess.run([sys.executable, str(HERE / "models.py")], cwd=self._work, env=environment, check=True)
        if variant == "with":
            environment = with_dsfix(environment)
        self._environment = {**environment, "DSFIX_REPORT": str(self._reports)}

    def tests(self, path: str) -> Iterator[tuple[str, str, str]]:
        """(test, outcome, why) of each."""
        results = self._work / "results.xml"
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-q"]
        command += ["-k", f"not ({' or '.join(self._suite.left_out)})", f"--junitxml={results}", path]
        try:
            subprocess.run(command, cwd=self._work, env=self._environment, timeout=self._seconds, check=False)
        except subprocess.TimeoutExpired:
            yield "all", "died", f"no end after {self._seconds:g} s"
        if results.is_file():
            yield from map(_outcome, xml.parse(results).iter("testcase"))

    def patches(self) -> tuple[set[str], list[str]]:
        """Those that were applied in any process, and those in trouble."""
        reports = [json.loads(each.read_text(encoding="utf-8")) for each in self._reports.glob("*.json")]
        seen = {(patch["id"], patch["outcome"]) for report in reports for patch in report["patches"]}
        return {name for name, outcome in seen if outcome == "applied"}, [
            name for name, outcome in sorted(seen) if outcome in TROUBLE
        ]


def _outcome(case: xml.Element) -> tuple[str, str, str]:
    test = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
    for child in case:
        if child.tag in ("failure", "error", "skipped"):
            outcome = "skipped" if child.tag == "skipped" else "failed"
            ranks = _RANKS_ERROR.findall(child.text or "")  # of processes that the test has launched
            return test, outcome, " ".join((ranks[-1] if ranks else child.get("message") or "").split())[:_LENGTH]
    return test, "passed", ""


def _read() -> dict[str, Any]:
    record: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else {}
    return record


def _complete(told: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The tests whose file was run on both sides; one that a side does not have ended with its process."""
    runs: dict[str, dict[str, Any]] = told["runs"]
    files = {test.partition("::")[0] for test in runs}
    done = {path for path in files if all(_done(runs, path, variant) for variant in VARIANTS)}
    return {test: run for test, run in sorted(runs.items()) if test.partition("::")[0] in done}


def _worse(run: dict[str, Any]) -> bool:
    without, patched = (run.get(variant, "died") for variant in VARIANTS)
    return BADNESS[patched] > BADNESS[without]


def _complain(record: dict[str, Any]) -> int:
    worse = [test for told in record.values() for test, run in _complete(told).items() if _worse(run)]
    for test in worse:
        print(f"{test} is worse with dsfix", file=sys.stderr)
    return 1 if worse else 0


def _docs(options: argparse.Namespace) -> int:
    record = _read()
    text = _render(record)
    stale = not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text
    if options.check and stale:
        print(f"docs/{PAGE.name} is stale: `{COMMAND} docs` writes it", file=sys.stderr)
        return 1
    if stale:
        PAGE.write_text(text, encoding="utf-8")
    return _complain(record)


def _render(record: dict[str, Any]) -> str:
    parts = [
        f"""\
# The frameworks' own tests

Nobody here wrote them: accelerate's DeepSpeed tests, without dsfix and with it, on the CPU, with the emulated CUDA
device. No test may be worse with dsfix.

    git clone https://github.com/huggingface/accelerate && git -C accelerate checkout 16cb6eb8
    {COMMAND} run accelerate accelerate --of 16cb6eb8

runs what is not in `matrix/framework_tests/record.json`; `docs` instead of `run …` writes this page. There is no
network: the models that the tests name are tiny ones of the same kind, made by `matrix/framework_tests/models.py`.
Nothing of the tests is here but their names.
"""
    ]
    for name, told in sorted(record.items()):
        versions = ", ".join(f"{package} {version}" for package, version in told["versions"].items())
        parts.append(f"\n## {name}\n\nTests of {told['tests']}; {versions}; {told['date']}.\n")
        parts.append(f"{len(told['applied'])} patches were applied in the processes of the tests.\n\n")
        runs = _complete(told)
        counts = [Counter(run.get(variant, "died") for run in runs.values()) for variant in VARIANTS]
        outcomes = [each for each in BADNESS if any(count[each] for count in counts)]
        rows = [
            [f"{variant} dsfix", *(str(count[each]) for each in outcomes)] for variant, count in zip(VARIANTS, counts)
        ]
        parts.append(_table(["", *outcomes], rows) + "\n")
        cells = [
            [f"`{test.rpartition('/')[2]}`", *(run.get(each, "died") for each in VARIANTS)]
            for test, run in runs.items()
        ]
        whys = [next(iter(run["why"].values()), "") for run in runs.values()]
        parts.append(
            _table(["test", "without dsfix", "with it", "why"], [[*row, _plain(why)] for row, why in zip(cells, whys)])
        )
    left_out = [[name, f"`{test}`", why] for name, suite in SUITES.items() for test, why in suite.left_out.items()]
    parts.append("\n## What is not run\n\n")
    parts.append(_table(["framework", "tests", "why"], [*left_out, *map(list, NOT_RUN)]))
    return "".join(parts)


def _plain(text: str) -> str:
    """Text that Markdown leaves as it is, in a cell of a table."""
    return "".join(f"\\{each}" if each in r"\`*_<>|" else each for each in text)


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
