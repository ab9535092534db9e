"""Start-up cost for Pythons that never import DeepSpeed: ``python bench/start.py [--pairs N] [--write]``.

CPU time (user + system) of `python -c pass` in a bare virtual environment: plain, with the file that `enable` writes,
and below `run`, alternating, so that changes in machine speed affect all.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import timeit
import venv
from datetime import date
from pathlib import Path

import page

import dsfix
from dsfix.start import DIRECTORY, pth

IGNORED = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")  # bytecode exists from a user's second start on
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in IGNORED}


class Starts:
    """A virtual environment's Python and the variables to start it with."""

    def __init__(self, directory: Path, **variables: str) -> None:
        venv.create(directory, symlinks=True)
        self.python = str(directory / "bin" / "python")
        self.environment = {**ENVIRONMENT, **variables}

    def packages(self) -> Path:
        command = [self.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        return Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())

    def milliseconds(self) -> float:
        process = subprocess.Popen([self.python, "-c", "pass"], env=self.environment)
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            sys.exit("python -c pass failed")
        return 1000 * (usage.ru_utime + usage.ru_stime)


def table(pairs: int) -> str:
    """Milliseconds and ratios as a Markdown table."""
    with tempfile.TemporaryDirectory() as directory:
        plain = Starts(Path(directory, "plain"))
        enabled = Starts(Path(directory, "enabled"))
        pth.write(enabled.packages() / pth.NAME)
        below = Starts(Path(directory, "below"), PYTHONPATH=DIRECTORY)
        kinds = {"`python -m dsfix enable`": enabled, "`python -m dsfix run`": below, "neither, again": plain}
        for each in kinds.values():
            each.milliseconds()  # fills bytecode and file caches
        bases: list[float] = []
        seen: dict[str, list[float]] = {what: [] for what in kinds}
        for _ in range(pairs):
            bases.append(plain.milliseconds())
            for what, each in kinds.items():
                seen[what].append(each.milliseconds())
    lines = ["| start with | added ms (median) | quartiles | ratio (median) |", "| --- | --- | --- | --- |"]
    for what, times in seen.items():
        more = [time - base for time, base in zip(times, bases)]
        first, middle, third = statistics.quantiles(more, n=4)
        ratio = statistics.median(time / base for time, base in zip(times, bases))
        lines.append(f"| {what} | {middle:.2f} | {first:.2f} to {third:.2f} | {ratio:.3f} |")
    return "\n".join(lines)


def nanoseconds_per_import() -> float:
    """What the hook adds to the import of a module other than DeepSpeed."""
    sys.path.insert(0, DIRECTORY)
    import _dsfix_start  # type: ignore[import-not-found]

    finder = sys.meta_path.pop(0)
    assert isinstance(finder, _dsfix_start.DeepSpeedFinder)
    return 1e9 * min(timeit.repeat(lambda: finder.find_spec("numpy", None, None), number=100_000, repeat=5)) / 100_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=500)
    parser.add_argument("--write", action="store_true", help="also write the section of docs/overhead.md")
    options = parser.parse_args()
    text = f"""`python -m tox run -e bench-start`, {date.today()}: dsfix {dsfix.__version__}, Python \
{platform.python_version()}, {os.cpu_count()} cores, {options.pairs} starts of each kind, by turns.

CPU time that dsfix adds to the start of a Python process that never imports DeepSpeed. The limit is 1 ms.

{table(options.pairs)}

Every module that the process imports later takes {nanoseconds_per_import():.0f} ns longer.
"""
    print(text)
    if options.write:
        page.update("At Python start-up", text)


if __name__ == "__main__":
    main()
