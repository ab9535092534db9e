"""What the search for plug-ins adds to `import dsfix` when none is installed: ``python bench/plugins.py``.

CPU time of fresh processes. The second figure is with 300 more distributions, half of them with entry points.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

RUNS = 15
ELSEWHERE = Path(__file__).parent  # not the checkout's root, whose dsfix is not the installed one
MEASURE = """
import time
start = time.process_time()
import dsfix
imported = time.process_time() - start
from dsfix.engine import plugins
start = time.process_time()
assert list(plugins.declared()) == [], "a plug-in is installed"
print(imported, time.process_time() - start)
"""


def milliseconds(path: str) -> tuple[float, float]:
    """Median CPU time of the import and of the search alone."""
    runs = []
    for _ in range(RUNS):
        done = subprocess.run(
            [sys.executable, "-c", MEASURE],
            cwd=ELSEWHERE,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        )
        runs.append([1000 * float(each) for each in done.stdout.split()])
    imported, searched = zip(*runs)
    return statistics.median(imported), statistics.median(searched)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        for number in range(300):
            information = Path(directory, f"stand_in_{number}-1.0.dist-info")
            information.mkdir()
            (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: stand-in-{number}\nVersion: 1.0\n")
            if number % 2:
                (information / "entry_points.txt").write_text("[console_scripts]\nstand-in = stand_in:main\n")
        for what, path in (("installed here", ""), ("and 300 more", directory)):
            imported, search = milliseconds(path)
            print(f"{what}: import dsfix {imported:.0f} ms, the search {search:.1f} ms ({search / imported:.1%})")


if __name__ == "__main__":
    main()
