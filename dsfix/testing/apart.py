"""Runs tests that use the lab in fresh processes, because the emulated CUDA device must be loaded before torch.

Each process runs pytest for that one test, with the plug-in dsfix.testing.inside; its reports are returned as files.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dsfix.lab.errors import LabUnavailable
from dsfix.lab.ranks import RankResult, launch
from dsfix.lab.session import Lab
from dsfix.testing import inside

MARK = "dsfix_lab"
_TAIL_LINES = 40


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{MARK}(device='cuda', ranks=1, timeout=300.0): runs in fresh processes, one per rank, with a GPU or else "
        "the emulated CUDA device; a test that uses the fixture of that name does not need the mark",
    )


@pytest.fixture
def dsfix_lab() -> Iterator[Lab]:
    """This rank's `dsfix.lab.Lab`: torch, deepspeed, device, initialize(model, config), rank, world_size, tmp, ..."""
    with Lab(device=inside.device) as lab:
        yield lab


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Runs the items that use the lab, and leaves the others to pytest."""
    mark = item.get_closest_marker(MARK)
    if inside.device or (mark is None and MARK not in getattr(item, "fixturenames", ())):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    try:
        reports = _reports(item, *(mark.args if mark is not None else ()), **(mark.kwargs if mark is not None else {}))
    except (TypeError, ValueError) as error:  # wrong arguments of the mark
        reports = [_report(item, "failed", f"{MARK}: {error}")]
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    # pytest keeps fixtures of the previous item that this one would share
    teardown = pytest.CallInfo.from_call(lambda: item.session._setupstate.teardown_exact(nextitem), when="teardown")
    if teardown.excinfo is not None:
        item.ihook.pytest_runtest_logreport(report=pytest.TestReport.from_item_and_call(item, teardown))
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _reports(item: pytest.Item, device: str = "cuda", ranks: int = 1, timeout: float = 300.0) -> list[Any]:
    with tempfile.TemporaryDirectory(prefix="dsfix-testing-") as directory:
        environment = {**os.environ, **inside.variables(device, directory)}
        environment.pop("PYTEST_ADDOPTS", None)
        try:
            ended = launch(_command(item), ranks=ranks, timeout=timeout, env=environment)
        except LabUnavailable as reason:
            return [_report(item, "skipped", (str(item.path), 0, f"Skipped: {reason}"))]
        ended.sort(key=lambda each: each.returncode == -signal.SIGKILL)  # those were ended because another rank failed
        by_rank = [_reports_of(item, Path(directory), each) for each in ended]
    return next((reports for reports in by_rank if any(each.failed for each in reports)), by_rank[0])


def _command(item: pytest.Item) -> list[str]:
    """pytest for this item, with the configuration file and directories of this run but none of its other options."""
    config = item.config
    plugins = {"xdist": ["-n0"], "_cov": ["--no-cov"]}
    return [
        *(sys.executable, "-m", "pytest", "-p", "dsfix.testing", "-p", inside.__name__, f"--rootdir={config.rootpath}"),
        *(["-c", str(config.inipath)] if config.inipath is not None else []),
        *(f"--import-mode={config.getoption('importmode')}", f"--tb={config.getoption('tbstyle')}"),
        *(option for name, options in plugins.items() if config.pluginmanager.hasplugin(name) for option in options),
        "::".join([str(item.path), *item.nodeid.split("::")[1:]]),
    ]


def _reports_of(item: pytest.Item, directory: Path, ended: RankResult) -> list[Any]:
    """The reports of the rank's pytest about the item; one failure if it ended early."""
    try:
        data = pickle.loads((directory / f"{ended.rank}.reports").read_bytes())
    except OSError:
        data = []
    reports = [item.config.hook.pytest_report_from_serializable(config=item.config, data=each) for each in data]
    if [each.when for each in reports][-1:] == ["teardown"]:
        return reports
    how = "was killed at the time limit" if ended.timed_out else f"ended with exit status {ended.returncode}"
    output = (ended.stdout + ended.stderr).splitlines()[-_TAIL_LINES:]
    return [_report(item, "failed", "\n".join([f"rank {ended.rank} {how}", *output]))]


def _report(item: pytest.Item, outcome: Any, why: Any) -> pytest.TestReport:
    return pytest.TestReport(item.nodeid, item.location, dict.fromkeys(item.keywords, 1), outcome, why, "call")
