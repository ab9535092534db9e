"""What a schedule of the emulated CUDA device costs, and what having schedules costs without one; ratios in one run.

    python bench/schedules.py [--release X] [--patch [ID ...]] [--rounds N] [--before REVISION]

Reproductions, with their patches, without a schedule and under the late one: wall-clock time, as the matrix runs them.
Steps of usual jobs: CPU time of rank 0, without a schedule, under the late one, with the race detector besides, and on
the emulated device of an earlier revision, by default the last one that had no schedules. Median and quartiles of the
rounds' ratios; the sides of a ratio take turns.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import matrix  # noqa: F401 isort: skip  takes the checkout, whose dsfix/ has no patches, off sys.path again

from dsfix.lab import reproduction
from dsfix.lab.cuda.schedule import variables
from dsfix.lab.isolation import isolated
from dsfix.lab.launcher import launch
from dsfix.lab.preload import Preloaded
from matrix import environments

_HERE = Path(__file__).resolve().parent
_SCRIPT = _HERE.parent / "matrix" / "bystanders" / "preloading.py"  # imports DeepSpeed
_TIMEOUT = 300.0  # seconds
_WITHOUT_SCHEDULES = "44e90e3^"
#: On 0.18.9, of each stage, with offload, with checkpoints, on one rank and on two.
PATCHES = (
    "fp16_stage0_loss_unscaled",
    "dict_output_double_scaling",
    "zero1_accumulation_dtype_unreduced",
    "zero12_offload_left_out_gradients",
    "universal_checkpoint_shared_step",
    "zero3_left_out_gradients",
    "zero3_allreduce_fetch_padding",
    "hpz_stale_frozen",
)
_NONE, _LATE, _RACES = "none", "late", "late, races"
_SCHEDULES = {_NONE: variables("", False), _LATE: variables("late", False), _RACES: variables("late", True)}


def reproductions(release: str, patches: Sequence[str], rounds: int) -> list[str]:
    """The table's lines: how many times as long each reproduction takes under the late schedule."""
    path = environments.installed(release)
    lines = []
    every: list[float] = []
    if not patches:
        return []
    with Preloaded("cuda") as preloaded:
        command = preloaded.command("dsfix.lab.reproduction")

        def seconds(patch_id: str, schedule: str) -> float:
            seen = reproduction.run(patch_id, True, _TIMEOUT, path, command, schedule)
            if seen.outcome != "no-bug":
                sys.exit(f"schedules: {patch_id}, schedule {schedule or 'none'}: {seen.outcome}: {seen.detail}")
            return seen.seconds

        for patch_id in patches:
            taken = []
            for number in range(rounds):
                turns = ("", "late") if number % 2 else ("late", "")
                taken.append({schedule: seconds(patch_id, schedule) for schedule in turns})
            ratios = [each["late"] / each[""] for each in taken]
            every.append(statistics.median(ratios))
            lines.append(f"| reproduction of {patch_id}, late / none | {_figures(ratios)} |")
    lines.append(f"| all of these, late / none: the largest median | {max(every):.2f} | |")
    return lines


def steps(release: str, rounds: int, before: str) -> list[str]:
    """The table's lines: a step under a schedule against one without, and that against one on the earlier device."""
    path = environments.installed(release)
    lines = []
    with tempfile.TemporaryDirectory(prefix="dsfix-schedules-") as name, ExitStack() as stack:
        earlier = Path(name, "earlier")
        _extract(before, earlier)
        paths = {side: os.pathsep.join(map(str, (*first, _HERE, path))) for side, first in _sides(before, earlier)}
        servers = {}
        for found in set(paths.values()):
            environment = {"PYTHONPATH": found, "DSFIX_DISABLE": "1"}
            servers[found] = stack.enter_context(Preloaded("cuda", _SCRIPT, environment=environment))
        for stage in ("0", "2", "3"):
            ratios: dict[str, list[float]] = {_LATE: [], _RACES: [], before: []}
            for number in range(rounds):
                turns = [_NONE, *ratios]
                taken = {}
                for side in turns if number % 2 else reversed(turns):
                    taken[side] = _step(stage, servers[paths[side]], paths[side], _SCHEDULES.get(side, {}))
                for side in (_LATE, _RACES):
                    ratios[side].append(taken[side] / taken[_NONE])
                ratios[before].append(taken[_NONE] / taken[before])
            for side in (_LATE, _RACES):
                lines.append(f"| a step of ZeRO-{stage}, {side} / none | {_figures(ratios[side])} |")
            lines.append(f"| a step of ZeRO-{stage}, none / before there were schedules | {_figures(ratios[before])} |")
    return lines


def _sides(before: str, earlier: Path) -> Iterator[tuple[str, Sequence[Path]]]:
    """What is measured, with what precedes the installed dsfix."""
    yield from ((side, ()) for side in _SCHEDULES)
    yield before, (earlier,)


def _step(stage: str, server: Preloaded, path: str, environment: Mapping[str, str]) -> float:
    """The median CPU seconds of a step of rank 0 of two."""
    with tempfile.TemporaryDirectory(prefix="dsfix-schedules-") as name:
        complete = {**isolated(Path(name)), "PYTHONPATH": path, "DSFIX_DISABLE": "1", **environment}
        argv = [*server.command("schedules_rank"), stage, name]
        ended = launch(argv, ranks=2, timeout=_TIMEOUT, env=complete, cwd=name)
        written = Path(name, "0.json")
        if not written.is_file():
            sys.exit(f"schedules: ZeRO-{stage}: {''.join(ended[0].stderr.strip().splitlines()[-1:])}")
        found: list[float] = json.loads(written.read_text(encoding="utf-8"))
        return statistics.median(found)


def _extract(revision: str, directory: Path) -> None:
    """Puts dsfix/ of a revision of this repository into the directory."""
    archived = subprocess.run(["git", "archive", revision, "dsfix"], cwd=_HERE.parent, capture_output=True)
    if archived.returncode != 0:
        sys.exit(f"schedules: {archived.stderr.decode().strip()}: name another revision with --before")
    with tarfile.open(fileobj=io.BytesIO(archived.stdout)) as file:
        file.extractall(directory, filter="data")


def _figures(ratios: Sequence[float]) -> str:
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else list(ratios) * 3
    return f"{middle:.2f} | {low:.2f} to {high:.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", default="0.18.9")
    parser.add_argument("--patch", nargs="*", default=PATCHES, metavar="ID")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--before", default=_WITHOUT_SCHEDULES, metavar="REVISION")
    options = parser.parse_args()
    print(f"DeepSpeed {options.release}, {options.rounds} rounds\n")
    print("| what | ratio (median) | quartiles |\n| --- | --- | --- |", flush=True)
    for line in reproductions(options.release, options.patch, options.rounds):
        print(line, flush=True)
    for line in steps(options.release, options.rounds, options.before):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
