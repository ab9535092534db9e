"""The recorded runs: records/<release>.txt, one file per release, in four parts.

    release, date and versions
    one line per patch: id, statements, fingerprint when last judged alone, and code=statements that a job has run
    one line per text: code and text
    one line per job: id, the script's fingerprint, the verdict, codes of what was run, and verdicts on single patches

A verdict is its state, `:` and the code of a text, the errors without and with the patches (once if they are the same),
and how many collectives (c), waits of the host (s) and bytes of peak memory (p) there are more; zeros are left out,
`=` stands for the verdict on all patches, `-` for nothing. Codes are stable, so that a changed job changes one
line.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from packaging.version import Version

from dsfix.catalogue.registry import catalogue
from dsfix.cli.exits import CommandError
from dsfix.settings import write_atomically
from matrix import fingerprints, proofs
from matrix.bystanders import space
from matrix.bystanders.comparison import State, Verdict
from matrix.bystanders.space import Job

DIRECTORY = Path(__file__).with_name("records")
_LONGEST = 200  # characters of a reason
_NONE = "-"
_COUNTS = {"c": "collectives", "s": "syncs", "p": "peak"}


@dataclass
class Run:
    """One job with all patches compared with none. script: the scenario's fingerprint. run: patch id -> the numbers of
    its statements that were run, as bits of a hexadecimal number. one: patch id -> the verdict on that patch alone."""

    script: str
    found: Verdict
    run: Mapping[str, str] = field(default_factory=dict)
    one: dict[str, Verdict] = field(default_factory=dict)


@dataclass
class Record:
    """One release. statements: patch id -> number of its statements, for patches that apply. proved: patch id -> the
    fingerprint of its changes when it was last judged alone."""

    release: str
    date: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    statements: dict[str, int] = field(default_factory=dict)
    proved: dict[str, str] = field(default_factory=dict)
    jobs: dict[str, Run] = field(default_factory=dict)
    codes: dict[str, str] = field(default_factory=dict, compare=False)  # of texts, and of "patch statements"

    def current(self, job: Job) -> Run | None:
        """The job's run, or None if it was not run or its script has changed since."""
        run = self.jobs.get(job.id)
        return run if run is not None and run.script == job.scenario.fingerprint() else None

    def is_proved(self, patch_id: str) -> bool:
        """Whether the patch in its current version was judged alone, and a job that runs its lines has the verdict.

        A job that is run again after a change of its script loses those on single patches.
        """
        through = [run for run in self.jobs.values() if patch_id in run.run]
        judged = any(patch_id in run.one for run in through)
        return (judged or not through) and self.proved.get(patch_id) == fingerprints.of_changes(catalogue()[patch_id])


def rounded(verdict: Verdict) -> Verdict:
    """The verdict as it is recorded: without paths, numbers with three significant digits."""
    why = " ".join(proofs.without_paths(verdict.why).split())[:_LONGEST]
    return replace(verdict, why=why, before=float(f"{verdict.before:.3g}"), after=float(f"{verdict.after:.3g}"))


def load(release: str, directory: Path = DIRECTORY) -> Record:
    """The release's record, empty without a file. Raises CommandError if the file is damaged."""
    path = directory / f"{release}.txt"
    try:
        return _read(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Record(release)
    except (OSError, ValueError, KeyError, IndexError):
        raise CommandError(f"{path} is not a valid bystander record: repair or remove it") from None


def _read(text: str) -> Record:
    parts: list[list[list[str]]] = [[]]
    for line in text.splitlines():
        if line:
            parts[-1].append(line.split("\t"))
        else:
            parts.append([])
    head, patches, texts, jobs = parts
    (release, date, *versions), ran, why = head[0], dict[str, tuple[str, str]](), {"": ""}
    record = Record(release, date, dict(version.split(" ") for version in versions))
    for patch_id, count, proved, *codes in patches:
        if count != _NONE:
            record.statements[patch_id] = int(count)
        if proved != _NONE:
            record.proved[patch_id] = proved
        for code, _, mask in (each.partition("=") for each in codes):
            ran[code] = patch_id, mask
            record.codes[f"{patch_id} {mask}"] = code
    for code, sentence in texts:
        why[code] = sentence
        record.codes[sentence] = code
    for job_id, script, verdict, masks, *ones in jobs:
        overall, run = _verdict(verdict, why), dict(ran[code] for code in _pairs(masks.strip(_NONE)))
        one = {ran[each[:2]][0]: overall if each[3:] == "=" else _verdict(each[3:], why) for each in ones}
        record.jobs[job_id] = Run(script, overall, run, one)
    return record


def _pairs(text: str) -> Iterator[str]:
    return (text[at : at + 2] for at in range(0, len(text), 2))


def _verdict(text: str, why: Mapping[str, str]) -> Verdict:
    state, *rest = text.split(" ")
    extra: dict[str, Any] = {}
    for each in rest:
        if each[0] == ":":
            extra["why"] = why[each[1:]]
        elif each[0] in _COUNTS:
            extra[_COUNTS[each[0]]] = int(each[1:])
        else:
            before, _, after = each.partition("/")
            extra.update(before=float(before), after=float(after or before))
    return Verdict(State(state), **extra)


def load_all(directory: Path = DIRECTORY) -> list[Record]:
    """All records, newest release first."""
    releases = sorted((path.stem for path in directory.glob("*.txt")), key=Version, reverse=True)
    return [load(release, directory) for release in releases]


def judging_record(patch_id: str, found: Sequence[Record]) -> Record | None:
    """The record in which the patch is judged alone."""
    applying = {each.release: each for each in found if patch_id in each.statements}
    return applying[preferred(applying)] if applying else None


def preferred(releases: Iterable[str]) -> str:
    """The release with all jobs, else the newest; one with few scenarios only if there is no other."""

    def rank(release: str) -> tuple[bool, bool, Version]:
        return release == space.FULL_RECORD, release not in space.PARTIAL_RECORDS, Version(release)

    return max(releases, key=rank)


def save(record: Record, directory: Path = DIRECTORY) -> None:
    write_atomically(directory / f"{record.release}.txt", _written(record).encode())


def _written(record: Record) -> str:
    runs = record.jobs.values()
    masks = {(name, mask) for run in runs for name, mask in run.run.items()}
    masks |= {(name, "0") for run in runs for name in run.one if name not in run.run}
    texts = {each.why for run in runs for each in (run.found, *run.one.values()) if each.why}
    wanted = sorted([*(f"{name} {mask}" for name, mask in masks), *texts])
    taken = set(record.codes.values())
    record.codes = {each: record.codes[each] for each in wanted if each in record.codes}
    free = (code for code in map("".join, itertools.product(string.ascii_letters, repeat=2)) if code not in taken)
    record.codes.update((each, next(free)) for each in wanted if each not in record.codes)

    lines = ["\t".join((record.release, record.date, *(f"{k} {v}" for k, v in sorted(record.versions.items())))), ""]
    for name in sorted({*record.statements, *record.proved, *(name for name, _ in masks)}):
        codes = [f"{record.codes[f'{name} {mask}']}={mask}" for which, mask in sorted(masks) if which == name]
        lines.append("\t".join((name, str(record.statements.get(name, _NONE)), record.proved.get(name, _NONE), *codes)))
    lines += ["", *(f"{record.codes[text]}\t{text}" for text in sorted(texts)), ""]
    for job_id, run in sorted(record.jobs.items()):
        ran = "".join(record.codes[f"{name} {mask}"] for name, mask in sorted(run.run.items()))
        ones = [
            f"{record.codes[f'{name} {run.run.get(name, 0)}']} "
            + ("=" if verdict == run.found else _encode_verdict(verdict, record))
            for name, verdict in sorted(run.one.items())
        ]
        lines.append("\t".join((job_id, run.script, _encode_verdict(run.found, record), ran or _NONE, *ones)))
    return "\n".join(lines) + "\n"


def _encode_verdict(each: Verdict, record: Record) -> str:
    parts = [str(each.state), *([f":{record.codes[each.why]}"] if each.why else [])]
    if each.before or each.after:
        parts.append(f"{each.before:g}" if each.before == each.after else f"{each.before:g}/{each.after:g}")
    parts += [f"{letter}{value}" for letter, name in _COUNTS.items() if (value := getattr(each, name))]
    return " ".join(parts)


def bits(numbers: Any) -> str:
    """Statement numbers as bits of a hexadecimal number."""
    return f"{sum(1 << number for number in numbers):x}"


def share(record: Record, patch_id: str) -> tuple[int, int]:
    """How many of a patch's statements were run by any job, and how many there are."""
    mask = 0
    for run in record.jobs.values():
        mask |= int(run.run.get(patch_id, "0"), 16)
    return mask.bit_count(), record.statements.get(patch_id, 0)
