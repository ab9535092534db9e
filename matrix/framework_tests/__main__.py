"""`python -m matrix.framework_tests run NAME DIR`: run a framework's own DeepSpeed tests, without and with dsfix."""

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

from dsfix.lab.isolation import isolated
from dsfix.settings import cache_directory
from matrix.environments import with_dsfix

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RECORD = HERE / "record.json"
MACHINE = ROOT / "demo" / "machine"  # provides the emulated device if there is no GPU; tests are skipped without one
COMMAND = "python -m tox exec -e patches-0.18.9 -- python -m matrix.framework_tests"
VARIANTS = ("without", "with")
TROUBLE = ("conflict", "drifted", "failed")
BADNESS = {"passed": 0, "skipped": 1, "failed": 2, "died": 3}
_NEEDS = "parameterized==0.9.0"  # imported by the tests; installed into a scratch directory
_LENGTH = 160
_RANKS_ERROR = re.compile(r"\[rank\d+\]: (\w+Error: .*)")


@dataclass(frozen=True)
class Suite:
    """paths: relative to the framework's directory. left_out: part of a test's name -> why it is not run."""

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
    ("accelerate", "`test_utils/scripts` in the package", f"those that the tests above do not run need {_MRPC}"),
    ("accelerate", "`tests/test_fp8.py`", "transformer_engine, on a GPU"),
    (
        "peft",
        "`TestUnshardedLoRASaveUnderZeRO3`, of its source distribution",
        "uses torch's default process group for a GPU, NCCL, which the CPU build lacks",
    ),
    ("transformers", "all", "neither the package nor its source distribution contains its DeepSpeed tests"),
    ("trl", "all", "neither the package nor its source distribution contains tests"),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m matrix.framework_tests", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    runs = commands.add_parser("run", help="run a framework's tests that are not in the record, without and with dsfix")
    runs.add_argument("framework", choices=SUITES)
    runs.add_argument("directory", type=Path, metavar="DIR", help="a clone of the framework")
    runs.add_argument("--of", required=True, metavar="TAG", help="the tag or commit of the tests")
    runs.add_argument("--again", action="store_true", help="run tests that are in the record again")
    runs.add_argument("--seconds", type=float, default=1800.0, metavar="S", help="time limit of one test file")
    runs.set_defaults(action=_run)
    options = parser.parse_args()
    status: int = options.action(options)
    return status


def _run(options: argparse.Namespace) -> int:
    record = read()
    suite = record.setdefault(options.framework, {})
    names = ("deepspeed", "torch", "transformers", options.framework)
    new = {"tests": options.of, "versions": {name: importlib.metadata.version(name) for name in names}}
    if options.again or new != {name: suite.get(name) for name in new}:
        suite.clear()
    suite.update(new, date=datetime.date.today().isoformat())
    runs, applied = suite.setdefault("runs", {}), suite.setdefault("applied", [])
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
    return complain(record)


def _done(runs: dict[str, dict[str, Any]], path: str, variant: str) -> bool:
    return any(variant in run for test, run in runs.items() if test.startswith(f"{path}::"))


class _Session:
    """A suite's tests in a scratch directory, with the models that they load."""

    def __init__(self, scratch: Path, options: argparse.Namespace, variant: str) -> None:
        self._suite, self._seconds = SUITES[options.framework], options.seconds
        self._work, self._reports = scratch / "work", scratch / "reports"
        shutil.copytree(options.directory / "tests", self._work / "tests")
        extra = scratch / "extra"
        install = ["uv", "pip", "install", "--quiet", "--no-deps", "--target", str(extra), _NEEDS]
        subprocess.run([*install, "--python", sys.executable], check=True)
        extensions = cache_directory() / "framework-tests"
        for lock in extensions.rglob("lock"):
            lock.unlink()  # left by a build that was killed, on which the next would wait forever
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
        """(test, outcome, why) for each test."""
        results = self._work / "results.xml"
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-q"]
        command += ["-k", f"not ({' or '.join(self._suite.left_out)})", f"--junitxml={results}", path]
        try:
            subprocess.run(command, cwd=self._work, env=self._environment, timeout=self._seconds, check=False)
        except subprocess.TimeoutExpired:
            yield "all", "died", f"not finished after {self._seconds:g} s"
        if results.is_file():
            yield from map(_outcome, xml.parse(results).iter("testcase"))

    def patches(self) -> tuple[set[str], list[str]]:
        """The patches applied in any process, and those in trouble."""
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
            ranks = _RANKS_ERROR.findall(child.text or "")  # from processes that the test has launched
            return test, outcome, " ".join((ranks[-1] if ranks else child.get("message") or "").split())[:_LENGTH]
    return test, "passed", ""


def read() -> dict[str, Any]:
    record: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else {}
    return record


def _complete(suite: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The tests whose file was run on both sides; a test missing on one side died with its process."""
    runs: dict[str, dict[str, Any]] = suite["runs"]
    files = {test.partition("::")[0] for test in runs}
    done = {path for path in files if all(_done(runs, path, variant) for variant in VARIANTS)}
    return {test: run for test, run in sorted(runs.items()) if test.partition("::")[0] in done}


def _worse(run: dict[str, Any]) -> bool:
    without, patched = (run.get(variant, "died") for variant in VARIANTS)
    return BADNESS[patched] > BADNESS[without]


def complain(record: dict[str, Any]) -> int:
    worse = [test for suite in record.values() for test, run in _complete(suite).items() if _worse(run)]
    for test in worse:
        print(f"{test} is worse with dsfix", file=sys.stderr)
    return 1 if worse else 0


def render(record: dict[str, Any]) -> str:
    """build/pages/framework-tests.md."""
    parts = [
        f"""\
# The frameworks' own tests

accelerate's own DeepSpeed tests, run without and with dsfix on the CPU, with the emulated CUDA device. No test may be
worse with dsfix.

    git clone https://github.com/huggingface/accelerate && git -C accelerate checkout 16cb6eb8
    {COMMAND} run accelerate accelerate --of 16cb6eb8

runs the tests that are not in `matrix/framework_tests/record.json`. The
tests run without a network: `matrix/framework_tests/models.py` creates tiny models of the same kind under the names
that the tests load. This repository contains only the tests' names.
"""
    ]
    for name, suite in sorted(record.items()):
        versions = ", ".join(f"{package} {version}" for package, version in suite["versions"].items())
        parts.append(f"\n## {name}\n\nTests of {suite['tests']}; {versions}; {suite['date']}.\n")
        parts.append(f"{len(suite['applied'])} patches were applied in the tests' processes.\n\n")
        runs = _complete(suite)
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
    left_out = [[name, f"`{test}`", why] for name, each in SUITES.items() for test, why in each.left_out.items()]
    parts.append("\n## What is not run\n\n")
    parts.append(_table(["framework", "tests", "why"], [*left_out, *map(list, NOT_RUN)]))
    return "".join(parts)


def _plain(text: str) -> str:
    """The text escaped for a Markdown table cell."""
    return "".join(f"\\{each}" if each in r"\`*_<>|" else each for each in text)


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
