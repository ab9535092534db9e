"""What dsfix costs, as ratios measured in one run: ``python bench/costs.py --hot DIR [--pairs N] [--write PAGE]``.

Measures the environment's DeepSpeed; `tox run -e bench` uses the release with the most patches. CPU time (user +
system) of fresh processes, alternating with and without dsfix, so that changes in machine speed affect both. DIR
contains DeepSpeed 0.14.2, in which a patched function can be called on its own.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

ELSEWHERE = Path(__file__).parent  # not the checkout's root, whose dsfix is not the installed one
ENVIRONMENT = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
ENVIRONMENT.pop("PYTHONDONTWRITEBYTECODE", None)  # bytecode exists from a user's second run on

PLAIN = "import deepspeed"
WITH = "import dsfix, deepspeed"

HOT = """
import sys, time, types, statistics
import dsfix, torch, deepspeed
from deepspeed.runtime.zero import stage3
optimizer = types.SimpleNamespace(loss_scale=1.0, clip_grad=1.0, device="cpu", fp32_partitioned_groups_flat=[
    types.SimpleNamespace(grad=torch.ones(16))])
from dsfix.engine.rewrite import find_function
function = find_function(stage3, "DeepSpeedZeroOptimizer_Stage3.unscale_and_clip_grads", "")
edited = function.__code__
dsfix.revert("zero3_offload_clip_device")
original = function.__code__
assert edited is not original
norm = torch.tensor(0.5)
def seconds(code, calls=2000):
    function.__code__ = code
    start = time.perf_counter()
    for _ in range(calls): function(optimizer, 0, norm)
    return time.perf_counter() - start
seconds(edited), seconds(original)
print(statistics.median(seconds(edited) / seconds(original) for _ in range(51)))
"""


def cpu_seconds(*arguments: str, **environment: str) -> float:
    """CPU time of one Python process, start to end."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ELSEWHERE,
        env={**ENVIRONMENT, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    stderr = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"python {' '.join(arguments)[:60]}… failed:\n{stderr.decode()}")
    return usage.ru_utime + usage.ru_stime


def hot_ratio(deepspeed: Path) -> float:
    """Time of an edited function over time of the original, in DeepSpeed 0.14.2 from that directory."""
    environment = {**ENVIRONMENT, "PYTHONPATH": str(deepspeed.absolute())}
    done = subprocess.run(
        [sys.executable, "-c", HOT], cwd=ELSEWHERE, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stderr)
    return float(done.stdout.split()[-1])


def table(pairs: int, hot: Path) -> str:
    """The figures as a Markdown table."""
    for arguments in (("-c", PLAIN), ("-c", WITH), ("-m", "dsfix", "list")):
        cpu_seconds(*arguments)  # fills bytecode, file caches and dsfix's cache
    imports, first, lists = [], [], []
    for _ in range(pairs):
        plain = cpu_seconds("-c", PLAIN)
        imports.append(cpu_seconds("-c", WITH) / plain)
        with tempfile.TemporaryDirectory() as nothing:
            first.append(cpu_seconds("-c", WITH, DSFIX_CACHE=nothing) / plain)
        lists.append(cpu_seconds("-m", "dsfix", "list") / plain)
    rows = [
        ("`import dsfix; import deepspeed` / `import deepspeed`, CPU time", imports, "1.03"),
        ("the same in the first process, with an empty cache directory", first, ""),
        (
            "a call of an edited function that does not reach the added code / the unpatched function",
            [hot_ratio(hot)],
            "1.00",
        ),
        ("`python -m dsfix list` / `import deepspeed`, CPU time", lists, "0.25"),
    ]
    lines = ["| what | ratio (median) | quartiles | limit |", "| --- | --- | --- | --- |"]
    for what, ratios, limit in rows:
        quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else []
        spread = f"{quartiles[0]:.3f} to {quartiles[2]:.3f}" if quartiles else ""
        lines.append(f"| {what} | {statistics.median(ratios):.3f} | {spread} | {limit} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hot", type=Path, required=True, metavar="DIR")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("dsfix", "deepspeed", "torch", "numpy")
    )
    started = time.perf_counter()
    figures = table(options.pairs, options.hot)
    page = f"""# What dsfix costs

`tox run -e bench` on {date.today()}: {versions}, Python {platform.python_version()}, {os.cpu_count()} cores, \
{options.pairs} pairs of runs, {time.perf_counter() - started:.0f} s. Ratios, not absolute times.

{figures}
"""
    print(page)
    if options.write is not None:
        options.write.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
