"""How fast `explain` is compared with `grep -E`: ``python bench/explain.py [--size MB] [--repeat N] [--write PAGE]``.

Each generated log is read alternately by `python -m dsfix explain` and `grep -E -c` (LC_ALL=C) with the same
expressions; those that span lines become one expression per line, without syntax that only Python supports. CPU time
(user + system) of whole processes; grep does less, because it only counts matching lines.
"""

from __future__ import annotations

import argparse
import collections
import csv
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import date
from itertools import cycle, islice
from pathlib import Path

from dsfix.explain import problems

ELSEWHERE = Path(__file__).parent  # not the checkout's root, whose dsfix is not the installed one
TRACEBACKS = Path(__file__).parents[1] / "tests" / "explain" / "tracebacks"
RANKS = 8
THREADS = Path(__file__).parents[1] / "tests" / "explain" / "threads.tsv"


def grep_expressions() -> list[str]:
    """The expressions of all problems in the syntax of `grep -E`, line by line; incomplete parts are left out."""
    found = []
    for problem in problems.known():
        for expression in problem.expressions:
            text = re.sub(r"\(\?[=!].*?\)", "", expression.pattern).replace(r"\d", "[0-9]")
            text = re.sub(r"\\1", "[0-9]+", text).replace(r"[^\n]", ".").replace(r"\s*\x04", "").replace("(?:", "(")
            parts = re.split(r"\[\\s\\S\](?:\*|\{\d+,\d+\}\??)|\\n\(\.\*\\n\)\{1,3\}|\\n", text)
            found += [part for part in parts if part and _complete(part)]
    return found


def _complete(part: str) -> bool:
    """Whether its brackets and braces are closed."""
    plain = re.sub(r"\\.", "", part)
    return all(plain.count(opening) == plain.count(closing) for opening, closing in ("()", "{}", "[]"))


def steps() -> Iterator[str]:
    """The output of 8 ranks in training."""
    for step in range(10**9):
        for rank in range(RANKS):
            yield (
                f"[rank{rank}]: [2026-11-21 10:{step // 60 % 60:02d}:{step % 60:02d},123] [INFO] "
                f"[logging.py:96:log_dist] [Rank {rank}] step={step}, skipped=0, lr=[{1e-5 / (step + 1):.6e}], "
                "mom=[(0.9, 0.999)]\n"
            )
        yield f"{{'loss': {2 / (step + 1):.4f}, 'grad_norm': {step % 7 / 7:.6f}, 'epoch': {step / 1000:.2f}}}\n"
        yield "".join(f"\r {done}%|{'#' * done}| {step}/1000 [00:12<01:23,  1.23s/it]" for done in range(3)) + "\n"


def coloured() -> Iterator[str]:
    for line in steps():
        yield f"\x1b[32m{line[:9]}\x1b[0m{line[9:]}"


def crashing() -> Iterator[str]:
    """Every 100 000 lines eight ranks crash with one of the recorded tracebacks, their lines interleaved."""
    recorded = cycle([path.read_text(encoding="utf-8").splitlines() for path in sorted(TRACEBACKS.glob("*.txt"))])
    lines = steps()
    while True:
        yield from islice(lines, 100_000)
        for line in next(recorded):
            yield from (f"[rank{rank}]: {line}\n" for rank in range(RANKS))


def warning() -> Iterator[str]:
    """Every tenth line matches an expression."""
    lines = steps()
    while True:
        yield from islice(lines, 9)
        yield "[rank3]: [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE)\n"


LOGS = {
    "training steps of 8 ranks": steps,
    "the same in colours": coloured,
    "8 tracebacks every 100 000 lines": crashing,
    "a matching line every 10 lines": warning,
}


def write(path: Path, lines: Iterator[str], size: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        written = 0
        while written < size:
            written += file.write("".join(islice(lines, 10_000)))


def run(command: Sequence[str]) -> tuple[float, int]:
    """CPU time in seconds and peak memory in MB of one process."""
    environment = {**os.environ, "LC_ALL": "C"}
    # with /dev/null as output, grep would stop at the first matching line
    process = subprocess.Popen(command, cwd=ELSEWHERE, env=environment, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read()
    _, _, usage = os.wait4(process.pid, 0)
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss // (1024 if sys.platform != "darwin" else 1 << 20)


def table(size: int, repeat: int, directory: Path) -> str:
    expressions = directory / "expressions"
    expressions.write_text("\n".join(grep_expressions()), encoding="utf-8")
    lines = [
        "| log | CPU time, explain / grep -E | MB per second of CPU time | memory, MB |",
        "| --- | --- | --- | --- |",
    ]
    for name, generate in LOGS.items():
        log = directory / "log"
        write(log, generate(), size)
        explain = [sys.executable, "-m", "dsfix", "explain", str(log)]
        grep = ["grep", "-E", "-c", "-f", str(expressions), str(log)]
        runs = [(run(explain), run(grep)[0]) for _ in range(repeat)]
        ratio = statistics.median(ours / theirs for (ours, _), theirs in runs)
        speed = statistics.median(log.stat().st_size / 1e6 / ours for (ours, _), _ in runs)
        memory = max(used for (_, used), _ in runs)
        lines.append(f"| {name} | {ratio:.1f} | {speed:.0f} | {memory} |")
    return "\n".join(lines)


def counted() -> str:
    """What was judged of the texts of public threads: for each set its sentences and a table, without what was not
    judged."""
    lines = THREADS.read_text(encoding="utf-8").splitlines()
    rows = list(csv.DictReader([line for line in lines if not line.startswith("#")], delimiter="\t"))
    verdicts = ("right", "partly", "wrong", "silent")
    parts = []
    for line in lines:
        if not line.startswith("# "):
            continue
        number, day, about = line.removeprefix("# ").split(": ", 2)
        chosen = [row for row in rows if row["set"].split()[0] == number]
        half = [row for row in chosen if row["set"].endswith(" counted")]
        table = [f"| texts of {len(chosen)} threads | {' | '.join(verdicts)} |", "| --- " * (len(verdicts) + 1) + "|"]
        for title, when, which in (
            ("before", "before", chosen),
            (f"before, the {len(half)} of the counted half", "before", half),
            (f"after, the {len(half)} of the counted half" if half else "after", "after", half or chosen),
        ):
            judged = [row for row in which if row[when]]
            if judged:
                if len(judged) < len(which):
                    title = f"{title}, the {len(judged)} of the other half"
                numbers = collections.Counter(row[when] for row in judged)
                table.append(f"| {title} | {' | '.join(str(numbers[each]) for each in verdicts)} |")
        parts.append(f"Judged on {day}. {about}\n\n" + "\n".join(table))
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1000, help="MB of each log (default 1000)")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dsfix-bench-") as directory:
        figures = table(options.size * 10**6, options.repeat, Path(directory))
    count = sum(len(problem.expressions) for problem in problems.known())
    version = subprocess.run(["grep", "--version"], capture_output=True, text=True).stdout.splitlines()[0]
    page = f"""# How fast `explain` is, and how often right

`tox run -e bench-explain` on {date.today()}: {len(problems.known())} problems, {count} expressions, \
logs of {options.size} MB, Python {platform.python_version()}, {version}, {os.cpu_count()} cores. \
Memory does not grow with the log.

{figures}

## How often it is right

{counted()}
"""
    print(page)
    if options.write is not None:
        options.write.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
