"""`known-bug-rows`: DeepSpeed's commits that look like fixes and that the table of known bugs has not judged yet."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from dsfix.cli.exits import OK, CommandError
from dsfix.known_bugs.table import COLUMNS, PATH, Table, parse

NAME = "known-bug-rows"
HELP = "list DeepSpeed's commits since the last judged one that look like fixes, as rows for the table of known bugs"
_FIX = re.compile(
    r"\b(?:(?:bug)?fix|bugs?\b|issues?\b|crash|hangs?\b|deadlock|error|exception|wrong|incorrect|invalid|missing|avoid|fail|"
    r"prevent|revert|races?\b|leak|nans?\b|overflow|guard|mismatch|ensure|workaround|regression|stale|broken|repair|"
    r"ignor|unexpected|warning|resolv|instead of|should|compatib|robust|previously|relax|conflict|default|fall\s*back)",
    re.I,
)
_CODE = re.compile(r"(deepspeed|accelerator|op_builder)/.*\.py$|bin/[^/]*$")
_NUMBER = re.compile(r"\(#(\d+)\)\s*$")
_AREAS = {
    "tensor-parallel": r"module_inject/auto|tensor_parallel|module_inject/layers",
    "inference": r"inference|module_inject|model_implementations|hybrid_engine",
    "pipeline": r"runtime/pipe/",
    "moe": r"deepspeed/moe/",
    "sequence": r"sequence",
    "checkpoint": r"checkpoint|to_fp32",
    "scheduler": r"lr_schedules",
    "compile": r"compile",
    "launcher": r"launcher|elasticity|autotuning|^bin/",
    "profiler": r"profiling|monitor|comms_logging|logging",
    "data": r"data_pipeline|data_efficiency|data_sampling",
    "offload": r"swap_tensor|nvme|superoffload|zenflow|cpu_adam",
    "zero++": r"mics|coalesced_collectives|fp_quantizer",
    "zero-3": r"zero/(stage3|partition|parameter_offload|linear|tiling)",
    "zero-1/2": r"zero/",
    "optimizer": r"ops/|fp16/onebit|muon",
    "precision": r"fp16|bf16|precision",
    "import": r"op_builder|accelerator|__init__",
}


@dataclass(frozen=True)
class Commit:
    """One commit: its hash, day, subject, the rest of its message, and the files that it touches."""

    sha: str
    day: str
    subject: str
    body: str
    files: tuple[str, ...]

    @property
    def key(self) -> str:
        number = _NUMBER.search(self.subject)
        return f"pull/{number[1]}" if number else f"commit/{self.sha[:9]}"

    @property
    def code(self) -> bool:
        """Whether it touches Python code that users run."""
        return any(map(_CODE.match, self.files))

    @property
    def looks_like_a_fix(self) -> bool:
        return bool(_FIX.search(f"{self.subject}\n{self.body}"))

    @property
    def area(self) -> str:
        code = [file for file in self.files if _CODE.match(file)]
        return next((area for area, named in _AREAS.items() if any(re.search(named, each) for each in code)), "engine")


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--clone", type=Path, required=True, help="a clone of DeepSpeed with its tags")
    command.add_argument("--to", default="HEAD", metavar="COMMIT", help="the last commit to look at (default: HEAD)")
    command.add_argument("--all", action="store_true", help="also the commits that do not look like fixes")
    command.add_argument(
        "--judged", action="store_true", help="write nothing but the table's head: all commits up to --to are judged"
    )


def run(options: argparse.Namespace) -> int:
    text = PATH.read_text(encoding="utf-8")
    table = parse(text)
    last = _git(options.clone, "rev-parse", "--short=9", f"{options.to}^{{commit}}").strip()
    if options.judged:
        PATH.write_text(with_head(text, judged=last), encoding="utf-8")
        print(f"the table now has judged all commits up to {last}")
        return OK
    commits = since(options.clone, table.judged, options.to)
    known = {row.key for row in table.rows}
    new = [commit for commit in commits if commit.code and commit.key not in known]
    chosen = [each for each in new if options.all or each.looks_like_a_fix]
    print("\t".join(COLUMNS))
    for each in chosen:
        print("\t".join(row(each, last_affected(options.clone, each, table))))
    print(
        f"{len(commits)} commits from {table.judged} to {last}: {len(new)} touch Python code and are no rows, "
        f"{len(chosen)} are listed{'' if options.all else '; --all lists the others, which may hide fixes'}.\n"
        "Judge each: dsfix/known_bugs/README.md.",
        file=sys.stderr,
    )
    return OK


def since(clone: Path, judged: str, to: str = "HEAD") -> list[Commit]:
    """The commits after the last judged one, oldest first. Raises CommandError."""
    log = _git(clone, "log", "--reverse", "--name-only", "--format=%x1e%H%x1f%cs%x1f%s%x1f%b%x1f", f"{judged}..{to}")
    commits = []
    for part in log.split("\x1e")[1:]:
        sha, day, subject, body, files = part.split("\x1f")
        commits.append(Commit(sha, day, subject, body, tuple(files.split())))
    return commits


def last_affected(clone: Path, commit: Commit, table: Table) -> str:
    """The newest release without this commit, by the tags; a guess, because not every tag is on the index."""
    fixed = sorted(_releases(_git(clone, "tag", "--contains", commit.sha).split()))
    before = [release for release in table.releases if not fixed or release < fixed[0]]
    return f"~{before[-1]}" if before else ""


def _releases(tags: Iterable[str]) -> Iterable[Version]:
    for tag in tags:
        try:
            yield Version(tag)
        except InvalidVersion:
            continue


def row(commit: Commit, last: str) -> Sequence[str]:
    """The cells of a row that has yet to be judged; "?" stands for values that the table does not accept."""
    bug = f"? {commit.day}: {' '.join(commit.subject.split())}"
    return (commit.key, "?", last, "?", "?", commit.area, bug, "", "")


def _git(clone: Path, *arguments: str) -> str:
    done = subprocess.run(("git", "-C", str(clone), *arguments), capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["git failed"])[-1]
        raise CommandError(f"{clone} is no clone of DeepSpeed that has this commit: {reason}")
    return done.stdout


def with_head(text: str, **values: str) -> str:
    """The table's text with these values in its head."""
    for name, value in values.items():
        text = re.sub(rf"(?m)^# {name}: .*$", f"# {name}: {value}", text)
    return text
