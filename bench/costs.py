"""What dsfix costs at import, as ratios measured in one run: ``python bench/costs.py [--pairs N] [--write]``.

CPU time (user + system) of fresh processes, by turns with and without dsfix, so that changes in machine speed affect
both. Releases are installed as the matrix does it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # last: the dsfix to measure is the installed one

import dsfix.patches
import page

from matrix.environments import installed

ELSEWHERE = Path(__file__).parent  # not the checkout's root, whose dsfix is not the installed one
ENVIRONMENT = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
ENVIRONMENT.pop("PYTHONDONTWRITEBYTECODE", None)  # bytecode exists from a user's second run on
RELEASES = ("0.14.2", "0.18.9", "0.19.8")
LARGE = "0.18.9"
SIZE, APPLY = 500, 60
_APPLIES = """
from dsfix.patch import Patch, Provide, Severity

PATCH = Patch(
    title="a made-up patch that applies everywhere", severity=Severity.USABILITY, affects={{"deepspeed": ">=0.12.0"}},
    changes=(Provide("deepspeed.utils", "_made_up_{number}", lambda module: None),), symptom="", upstream={{}},
    fixed_in=None, device="cpu",
)
"""
_LIKE = "muon_param_groups"  # a patch of usual length, which becomes one for no release

# what 0.14.2 imports and these versions of torch and NumPy no longer have
MISSING = """
import numpy, torch.distributed.elastic.agent.server.api as api
numpy.BUFSIZE, api._get_socket_with_port = 8192, None
import deepspeed
"""
PLAIN = ("-c", MISSING)
WITH = ("-c", "import dsfix, deepspeed")
LIST = ("-m", "dsfix", "list")
COUNT = "import dsfix, deepspeed; print(sum(each.outcome.value == 'applied' for each in dsfix.report()))"
HOT = """
import time, types, statistics
import dsfix, torch, deepspeed
from deepspeed.runtime.zero import stage3
optimizer = types.SimpleNamespace(loss_scale=1.0, clip_grad=1.0, device="cpu", fp32_partitioned_groups_flat=[
    types.SimpleNamespace(grad=torch.ones(16))])
from dsfix.engine.rewrite import find_function
function = find_function(stage3, "DeepSpeedZeroOptimizer_Stage3.unscale_and_clip_grads")
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


def cpu_seconds(arguments: Sequence[str], *paths: Path, **environment: str) -> float:
    """CPU time of one Python process, start to end, with these directories on PYTHONPATH."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ELSEWHERE,
        env={**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(map(str, paths)), **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    complaint = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"python {' '.join(arguments)[:60]}… failed:\n{complaint.decode()}")
    return usage.ru_utime + usage.ru_stime


def stdout_of(code: str, *paths: Path) -> str:
    """The last word that a process prints."""
    environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ELSEWHERE, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout.split()[-1]


class Times:
    """CPU seconds of one kind of process, and of `import deepspeed` alone in the same rounds."""

    def __init__(self) -> None:
        self.plain: list[float] = []
        self.own: list[float] = []

    @property
    def pairs(self) -> list[float]:
        """The ratio of each round, to the mean of the plain runs before and after it."""
        return [2 * one / sum(around) for one, around in zip(self.own, zip(self.plain, self.plain[1:]))]

    @property
    def fastest(self) -> float:
        """The ratio of the fastest runs: those that other load on the machine disturbed least."""
        return min(self.own) / min(self.plain)


def by_turns(pairs: int, plain: Callable[[], float], others: Sequence[Callable[[], float]]) -> list[Times]:
    """Each of `others` in each round, between two runs of `plain`."""
    found = [Times() for _ in others]
    for number in range(pairs + 1):
        before = plain()
        for each, other in zip(found, others):
            each.plain.append(before)
            if number < pairs:
                each.own.append(other())
    return found


def of_a_release(release: str, pairs: int) -> list[str]:
    path = installed(release)
    for arguments in (PLAIN, WITH, LIST):
        cpu_seconds(arguments, path)  # bytecode, file caches and dsfix's own cache

    def first() -> float:
        with tempfile.TemporaryDirectory() as nothing:
            return cpu_seconds(WITH, path, DSFIX_CACHE=nothing)

    others = (lambda: cpu_seconds(WITH, path), first, lambda: cpu_seconds(LIST, path))
    found = by_turns(pairs, lambda: cpu_seconds(PLAIN, path), others)
    names = ("import dsfix; import deepspeed", "the same in the first process (empty cache)", "`list`")
    wanted = ("1.03", "1.12", "0.15")
    return [_row(release, name, each.fastest, each.pairs, most) for name, each, most in zip(names, found, wanted)]


def _laid(directory: Path) -> Path:
    """A directory for PYTHONPATH with the dsfix that is installed."""
    package = Path(str(dsfix.__file__)).parent
    shutil.copytree(package, directory / "dsfix", ignore=shutil.ignore_patterns("__pycache__", "patches"))
    [patches] = dsfix.patches.__path__
    shutil.copytree(patches, directory / "dsfix" / "patches", ignore=shutil.ignore_patterns("__pycache__"))
    return directory


def _made_up(directory: Path, applying: int) -> Path:
    """The same with a larger catalogue. applying: how many of the real patches apply to the release."""
    patches = _laid(directory) / "dsfix" / "patches"
    count = sum(1 for path in patches.rglob("*.py") if not path.name.startswith("_"))
    for number in range(max(0, APPLY - applying)):
        (patches / f"z_applies_{number}.py").write_text(_APPLIES.format(number=number), encoding="utf-8")
        count += 1
    text = (patches / "optimizer" / f"{_LIKE}.py").read_text(encoding="utf-8")
    assert ">=0.19.2,<0.19.7" in text
    for number in range(SIZE - count):
        (patches / f"z_other_{number}.py").write_text(text.replace(">=0.19.2,<0.19.7", "<0.1"), encoding="utf-8")
    return directory


def of_a_large_catalogue(pairs: int) -> list[str]:
    path = installed(LARGE)
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        real = _laid(Path(one))
        large = _made_up(Path(other), int(stdout_of(COUNT, real, path)))
        for each in (real, large):
            cpu_seconds(WITH, each, path)
        others = [lambda each=each: cpu_seconds(WITH, each, path) for each in (real, large)]
        usual, larger = by_turns(pairs, lambda: cpu_seconds(PLAIN, path), others)
    what = f"import with {SIZE} patches, {APPLY} of which apply, minus import with the real ones"
    pairs_apart = [a - b for a, b in zip(larger.pairs, usual.pairs)]
    return [_row(LARGE, what, larger.fastest - usual.fastest, pairs_apart, "0.01")]


def _row(release: str, what: str, fastest: float, pairs: Sequence[float], wanted: str) -> str:
    low, middle, high = statistics.quantiles(pairs, n=4) if len(pairs) > 1 else [pairs[0]] * 3
    return f"| {release} | {what} | {fastest:.3f} | {middle:.3f} ({low:.3f} to {high:.3f}) | {_limit(middle, wanted)} |"


def _limit(median: float, wanted: str) -> str:
    return wanted if median <= float(wanted) else f"{wanted} (exceeded)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--write", action="store_true", help="also write the section of docs/overhead.md")
    options = parser.parse_args()
    named = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("dsfix", "torch", "numpy"))
    rows = [row for release in RELEASES for row in of_a_release(release, options.pairs)]
    rows += of_a_large_catalogue(options.pairs)
    hot = float(stdout_of(HOT, installed("0.14.2")))
    what = "a call of an edited function that does not reach the added code"
    rows.append(f"| 0.14.2 | {what} | | {hot:.3f} | {_limit(hot, '1.01')} |")
    table = "\n".join(rows)
    text = f"""`python -m tox run -e bench`, {date.today()}: {named}, Python {platform.python_version()}, \
{os.cpu_count()} cores, {options.pairs} pairs of runs.

CPU time relative to `import deepspeed` without dsfix. "fastest" compares the fastest runs, which other load on the
machine disturbs least; "pairs" is the median, with quartiles, of paired runs, and the limit is for this median. The
last row is relative to the unpatched call.

| DeepSpeed | what | fastest | pairs | limit |
| --- | --- | --- | --- | --- |
{table}
"""
    print(text)
    if options.write:
        page.update("At import", text)


if __name__ == "__main__":
    main()
