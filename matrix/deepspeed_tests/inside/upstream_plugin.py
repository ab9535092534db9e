"""A pytest plugin for DeepSpeed's tests: reports each event as a line of JSON.

UPSTREAM_PIPE is the file descriptor to write to, UPSTREAM_TESTS a file with the ids to run; without it tests are only
collected. The ranks of a test are forked from a process that has imported torch and DeepSpeed.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import json
import multiprocessing
import os
import re
from pathlib import Path
from typing import Any

import pytest

# otherwise each rank imports the second and third with its first optimizer
_PRELOADED = ("torch", "torch._dynamo", "torch._inductor.compile_fx", "deepspeed", "upstream_rank")
_ORDER = ("passed", "xpassed", "skipped", "xfailed", "failed", "error")
_LENGTH = 160
_now: dict[str, tuple[str, str]] = {}


def _report(**event: Any) -> None:
    os.write(int(os.environ["UPSTREAM_PIPE"]), json.dumps(event).encode() + b"\n")


def pytest_configure(config: pytest.Config) -> None:
    multiprocessing.set_forkserver_preload(list(_PRELOADED))
    # before DeepSpeed's conftest.py, which would import it from the directory above the tests
    importlib.import_module("deepspeed")
    versions = {}
    for name in ("deepspeed", "torch", "numpy", "pytest"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    _report(versions=versions)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    path = os.environ.get("UPSTREAM_TESTS")
    if path is None:
        _report(collected=[item.nodeid for item in items])
        return
    selected = set(Path(path).read_text(encoding="utf-8").splitlines())
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in selected])
    items[:] = [item for item in items if item.nodeid in selected]


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed or (report.skipped and "::" not in report.nodeid):
        _report(uncollected=report.nodeid, detail=_detail(report))


def pytest_runtest_logstart(nodeid: str) -> None:
    _now[nodeid] = ("passed", "")
    _report(start=nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    outcome: str = report.outcome
    if hasattr(report, "wasxfail"):
        outcome = "xfailed" if report.skipped else "xpassed"
    elif report.failed and report.when != "call":
        outcome = "error"
    if _ORDER.index(outcome) > _ORDER.index(_now[report.nodeid][0]):
        _now[report.nodeid] = outcome, _detail(report)


def pytest_runtest_logfinish(nodeid: str) -> None:
    outcome, detail = _now.pop(nodeid)
    _report(end=nodeid, outcome=outcome, detail=detail)


def _detail(report: pytest.CollectReport | pytest.TestReport) -> str:
    """The exception in one line, without source text and parts that depend on the machine."""
    error = report.longrepr
    if isinstance(error, tuple):
        message = str(error[2]).removeprefix("Skipped: ")
    else:
        crash = getattr(error, "reprcrash", None)
        lines = str(error).strip().splitlines() or [""]
        message = crash.message if crash is not None else lines[-1].removeprefix("E").strip()
    if re.match(r"(\w+\.)*AssertionError|assert\b", message):
        return "AssertionError"
    first = (message.strip().splitlines() or [""])[0]
    first = re.sub(r"(?:/[\w.+-]+)+/", "", first)
    return re.sub(r"\b(?:\d{8,}|0x[0-9a-f]+)\b", "…", first)[:_LENGTH]
