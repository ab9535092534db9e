"""Long runs and injected faults: ``python bench/soak [--only PART] [--fixed DIR] [--write] …``.

steps: a patched engine and the unpatched one of the fixed release in DIR train alternately; neither memory nor time per
step may grow.
kills: processes that import DeepSpeed are killed (SIGKILL) at random moments while patches are applied; afterwards no
file is half-written and the next start works.
threads: 64 threads import DeepSpeed's modules concurrently; every patch is applied, nothing hangs or is raised.
The environment's DeepSpeed is the patched one. Exit status 1 if any of this does not hold.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import sys
from datetime import date
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import page
from children import Broken
from kills import kills
from steps import steps
from threads import threads

PARTS = {"steps": steps, "kills": kills, "threads": threads}
HEADINGS = {"steps": "In a long run", "kills": "When processes are killed", "threads": "With many threads"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, action="append", help="only this part; can be repeated")
    parser.add_argument("--fixed", type=Path, metavar="DIR", help="directory of the release that `steps` compares with")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=100, help="rounds of `threads`")
    parser.add_argument("--seed", type=int, default=0, help="seed for random moments and orders")
    parser.add_argument("--write", action="store_true", help="also write the sections of docs/overhead.md")
    options = parser.parse_args()
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("dsfix", "deepspeed", "torch"))
    conditions = f"{date.today()}: {versions}, Python {platform.python_version()}, {os.cpu_count()} cores"
    status = 0
    for part in options.only or PARTS:
        amount = "rounds" if part == "threads" else part
        command = f"`python -m tox run -e soak -- --only {part} --{amount} {getattr(options, amount)}`"
        try:
            found = PARTS[part](options)
        except Broken as broken:
            found, status = f"Failed: {broken}", 1
        text = f"{command}, {conditions}.\n\n{found}\n"
        print(text, flush=True)
        if options.write:
            page.update(HEADINGS[part], text)
    return status


if __name__ == "__main__":
    sys.exit(main())
