"""A test that uses the lab runs in fresh processes: the emulated CUDA device has to be there before torch is imported.

Each process runs pytest for that one test, with the plug-in dsfix.testing.inside; its reports come back as files.
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
from dsfix.lab.launcher import RankResult, launch
from dsfix.lab.session import Lab
from dsfix.testing import inside

MARK = "dsfix_lab"
_TAIL_LINES = 40


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{MARK}(device='cuda', ranks=1, timeout=300.0): runs in fresh processes, one per rank, with a GPU or, where "
        "there is none, the emulated CUDA device; a test that uses the fixture of that name does so without the mark",
    )


@pytest.fixture
def dsfix_lab() -> Iterator[Lab]:
    """This rank's `dsfix.lab.Lab`: torch, deepspeed, device, initialize(model, config), rank, world_size, tmp, …"""
    with Lab(device=inside.device) as lab:
        yield lab


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Runs the items that are meant, and leaves the others to pytest."""
    mark = item.get_closest_marker(MARK)
    if inside.device or (mark is None and MARK not in getattr(item, "fixturenames", ())):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    try:
        reports = _reports(item, *(mark.args if mark is not None else ()), **(mark.kwargs if mark is not None else {}))
    except (TypeError, ValueError) as error:  # of the mark's arguments
        reports = [_report(item, "failed", f"{MARK}: {error}")]
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    # pytest has left what was set up for the item before and would serve this one, too
    left = pytest.CallInfo.from_call(lambda: item.session._setupstate.teardown_exact(nextitem), when="teardown")
    if left.excinfo is not None:
        item.ihook.pytest_runtest_logreport(report=pytest.TestReport.from_item_and_call(item, left))
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
        ended.sort(key=lambda each: each.returncode == -signal.SIGKILL)  # another's failure ends those
        told = [_told(item, Path(directory), each) for each in ended]
    return next((reports for reports in told if any(each.failed for each in reports)), told[0])


def _command(item: pytest.Item) -> list[str]:
    """pytest for this item, with this run's configuration file and directories, and none of its other options."""
    config = item.config
    plugins = {"xdist": ["-n0"], "_cov": ["--no-cov"]}
    return [
        *(sys.executable, "-m", "pytest", "-p", "dsfix.testing", "-p", inside.__name__, f"--rootdir={config.rootpath}"),
        *(["-c", str(config.inipath)] if config.inipath is not None else []),
        *(f"--import-mode={config.getoption('importmode')}", f"--tb={config.getoption('tbstyle')}"),
        *(option for name, options in plugins.items() if config.pluginmanager.hasplugin(name) for option in options),
        "::".join([str(item.path), *item.nodeid.split("::")[1:]]),
    ]


def _told(item: pytest.Item, directory: Path, ended: RankResult) -> list[Any]:
    """What the rank's pytest has reported of the item; one failure where it ended before."""
    try:
        data = pickle.loads((directory / f"{ended.rank}.reports").read_bytes())
    except OSError:
        data = []
    reports = [item.config.hook.pytest_report_from_serializable(config=item.config, data=each) for each in data]
    if [each.when for each in reports][-1:] == ["teardown"]:
        return reports
    how = "was killed at the time limit" if ended.timed_out else f"ended with exit status {ended.returncode}"
    said = (ended.stdout + ended.stderr).splitlines()[-_TAIL_LINES:]
    return [_report(item, "failed", "\n".join([f"rank {ended.rank} {how}", *said]))]


def _report(item: pytest.Item, outcome: Any, why: Any) -> pytest.TestReport:
    return pytest.TestReport(item.nodeid, item.location, dict.fromkeys(item.keywords, 1), outcome, why, "call")
