"""docs/bystanders.md, from the records and their explanations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dsfix.engine import registry
from matrix.bystanders import explanations, records, scenario, space
from matrix.bystanders.comparison import State
from matrix.bystanders.records import Found, Record
from matrix.bystanders.space import Job

PAGE = Path(__file__).resolve().parents[2] / "docs" / "bystanders.md"
COMMAND = "python -m tox run -e bystanders"
_TOLD = (State.OTHER.value, State.WORSE.value)

_HEAD = f"""# Bystanders

Jobs whose way leads through the lines that patches edit, most of them without any patch's bug. {{scenarios}} training
scripts meet settings (stage, offload, precision, ranks, accumulation, clipping, optimizer, …): {{jobs}} jobs, on the
emulated CUDA device. Each is run without the patches (but for those without which the release cannot be imported), with
them, and by plain PyTorch in fp32.

    {COMMAND} -- run {space.WHOLE} --each-patch

runs what is not in the record yet, on {space.WHOLE} all jobs, on another release one to two of each script; `-- docs`
writes this page, which has what was run so far. *Same*: with dsfix to the bit what it is without, with the same
collectives; *right*: something else than without, and what PyTorch computes, within rounding, or the same with fewer
collectives; *ended*: in the same exception with and without, after the same or what PyTorch computes; *other*: not what
PyTorch computes, with or without; *worse*: wrong, less exact, ended, or without agreement of the ranks on their
collectives, where it was not without.
"""


def worse(record: Record) -> list[str]:
    """One sentence for each job that a patch, or all of them, make worse without an explanation."""
    return [
        f"{record.release}: {job.id}{f', {patch_id} alone' if patch_id else ''}: {found.why}"
        for job, patch_id, found in _findings(record)
        if found.worse and not explanations.of(job, record.release, found, patch_id)
    ]


def faults(found: Sequence[Record]) -> Iterator[str]:
    """One sentence for each thing that is missing, stale, or has no explanation."""
    used: set[str] = set()
    for record in found:
        for job in space.jobs_of(record.release):
            if record.current(job) is None:
                yield f"{record.release}: {job.id} was not run as it is: `{COMMAND} -- run {record.release}`"
        for patch_id in registry.catalogue():
            if records.home(patch_id, found) is record and not record.is_proved(patch_id):
                how = f"`{COMMAND} -- run {record.release} --patch {patch_id}`"
                yield f"{record.release}: {patch_id} is another now: {how}"
        for job, patch_id, one in _findings(record):
            explained = explanations.of(job, record.release, one, patch_id)
            used.update(each.id for each in explained)
            if one.state in _TOLD and not explained:
                yield f"{record.release}: {job.id}{f', {patch_id} alone' if patch_id else ''}: {one.state}: {one.why}"
    for each in explanations.EXPLANATIONS:
        if each.id not in used:
            yield f"explanation {each.id} explains nothing"


def _findings(record: Record) -> Iterator[tuple[Job, str, Found]]:
    """Of all patches against none ("" for the patch), and of single ones against all others."""
    for job in space.jobs():
        run = record.jobs.get(job.id)
        if run is not None:
            yield job, "", run.found
            for patch_id, one in run.one.items():
                yield job, patch_id, one


def render(found: Sequence[Record]) -> str:
    parts = [
        _HEAD.format(scenarios=len(scenario.load()), jobs=len(space.jobs())),
        _overview(found),
        _patches(found),
        *(_told(record) for record in found),
        _scenarios(),
    ]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts if part)


def _overview(found: Sequence[Record]) -> str:
    states = [each.value for each in State]
    lines = [
        f"| release | jobs | {' | '.join(states)} | statements of patches run | day |",
        f"| --- | --- | {' | '.join('---' for _ in states)} | --- | --- |",
    ]
    for record in found:
        counts = Counter(run.found.state for run in record.jobs.values())
        shares = [records.share(record, each) for each in record.statements]
        run, there = (sum(each[i] for each in shares) for i in (0, 1))
        numbers = " | ".join(str(counts[each]) for each in states)
        lines.append(f"| {record.release} | {len(record.jobs)} | {numbers} | {run} of {there} | {record.date} |")
    return "\n".join(lines)


def _patches(found: Sequence[Record]) -> str:
    lines = [
        "## The patches\n",
        f"On {space.WHOLE} or, where it does not apply, the newest release here where it does: its statements",
        "that some job runs; the jobs that do; those in which it was left out, with all others there (one that",
        "is off by default: was taken in), and what came of it; what it adds at most to a job that stays the same:",
        "collectives, waits of the host for the device, bytes of peak memory.\n",
        "| patch | release | statements run | jobs | left out by itself | added |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    gaps, nowhere = [], []
    for patch_id in registry.catalogue():
        one = of(patch_id, found)
        if one is None:
            nowhere.append(patch_id)
            continue
        if not one.run:
            gaps.append(patch_id)
        states = ", ".join(f"{count} {state}" for state, count in sorted(one.states.items())) or "-"
        added = ", ".join(map(str, one.added)) if one.added else "-"
        row = (patch_id, one.release, f"{one.run} of {one.statements}", one.jobs, states, added)
        lines.append(f"| {' | '.join(map(str, row))} |")
    if gaps:
        lines += ["", f"Gaps: no job runs a line of {', '.join(gaps)}."]
    if nowhere:
        lines += ["", f"On none of these releases: {', '.join(nowhere)}."]
    return "\n".join(lines)


@dataclass(frozen=True)
class OfPatch:
    """A patch on the release where it is looked at by itself. run: how many of its statements some of the jobs ran;
    states: of the jobs in which it was left out by itself; added: the most collectives, waits of the host and bytes of
    peak memory that it adds to one that stays the same, None where there is none."""

    release: str
    statements: int
    run: int
    jobs: int
    states: Mapping[str, int]
    added: tuple[int, int, int] | None


def of(patch_id: str, found: Sequence[Record]) -> OfPatch | None:
    """None where it applies to none of these releases."""
    record = records.home(patch_id, found)
    if record is None:
        return None
    run, statements = records.share(record, patch_id)
    jobs = sum(patch_id in each.run for each in record.jobs.values())
    ones = [each.one[patch_id] for each in record.jobs.values() if patch_id in each.one]
    same = [each for each in ones if each.state == State.SAME.value]
    added = (
        tuple(max(getattr(each, name) for each in same) for name in ("collectives", "syncs", "peak")) if same else None
    )
    return OfPatch(record.release, statements, run, jobs, Counter(each.state for each in ones), added)


def _told(record: Record) -> str:
    rows: dict[tuple[str, str], list[str]] = {}
    for job, patch_id, one in _findings(record):
        if one.state in _TOLD:
            explained = explanations.of(job, record.release, one, patch_id)
            texts = " ".join(each.text for each in explained) or "not explained"
            setting = ", ".join(f"{name} {level}" for name, level in space.differing(job.setting).items())
            where = f"{job.scenario.name} ({setting or 'plain'}){f', {patch_id}' if patch_id else ''}"
            rows.setdefault((one.state, texts), []).append(f"{where}: {one.why} {_off(one)}")
    if not rows:
        return ""
    parts = [f"## {record.release}\n"]
    for (state, text), jobs in sorted(rows.items()):
        parts.append(f"**{state}**: {text}\n")
        parts += [f"- {each}" for each in jobs]
        parts.append("")
    return "\n".join(parts)


def _off(one: Found) -> str:
    return f"({one.before:.3g} without, {one.after:.3g} with)"


def _scenarios() -> str:
    by_family: dict[str, list[str]] = {}
    for each in scenario.load().values():
        by_family.setdefault(each.family, []).append(f"- `{each.name}`: {each.title}")
    return "## The scripts\n\n" + "\n\n".join(
        f"`matrix/bystanders/scenarios/{family}.py`\n\n" + "\n".join(lines)
        for family, lines in sorted(by_family.items())
    )
