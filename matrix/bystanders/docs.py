"""The page of the site, from the records and their explanations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dsfix.catalogue import registry
from matrix.bystanders import explanations, records, scenario, space
from matrix.bystanders.comparison import State, Verdict
from matrix.bystanders.records import Record
from matrix.bystanders.space import Job

COMMAND = "python -m tox run -e bystanders"
_EXPLAINED = (State.OTHER, State.WORSE)

#: Patches of releases without a record -> the test that runs a job without the bug on one of these releases.
TESTED = {"zero_to_fp32_integer_buffers_in_0_19_7": "tests/launchers/test_programs.py"}

#: Patches that no job can exercise in this environment, and why.
IMPOSSIBLE = {
    "import_python_314_annotations": "Python 3.14 only, where DeepSpeed cannot be imported without it; that what is "
    "imported with it works is shown by the cells of Python 3.14 in the matrix",
    "zenflow_import_before_torch_2_4": "torch 2.1 to 2.3 only, where DeepSpeed cannot be imported without it",
    "zero_backward_with_torch_2_3": "torch 2.3 and 2.4.0 only; the jobs are run with a newer one",
}

#: Patches whose usual workaround is not a training script -> the test that covers it.
WORKED_AROUND: Mapping[str, str] = {
    **dict.fromkeys(
        ("numpy_bufsize", "torch_elastic_get_socket_with_port", "torch_elastic_log"), "tests/release/test_import.py"
    ),
    "zero_to_fp32_integer_buffers_in_0_19_7": "tests/launchers/test_programs.py",
}

_HEAD = f"""# Bystanders

Jobs that run the lines that patches edit, most of them without any patch's bug. {{scenarios}} training scripts are
combined with settings (stage, offload, precision, ranks, accumulation, clipping, optimizer, …) into {{jobs}} jobs on
the emulated CUDA device. Each job is run without patches (except those needed to import the release), with them, and in
plain PyTorch in fp32.

    {COMMAND} -- run {space.FULL_RECORD} --each-patch

runs the jobs that are not in the record yet: on {space.FULL_RECORD} all jobs, on other releases one or two of each
script, and for patches that apply to none of these those of few scripts on {", ".join(space.PARTIAL_RECORDS)}.

- *same*: bitwise identical with and without dsfix, with the same collectives
- *right*: results differ, and those with dsfix match PyTorch within rounding; or the same with fewer collectives
- *ended*: the same exception with and without dsfix, after the same results or those of PyTorch
- *other*: results do not match PyTorch, with or without dsfix; or they are the same, and a patch says otherwise
- *worse*: only with dsfix wrong, less accurate, ended early, or with ranks that disagree on their collectives
"""


def worse(record: Record) -> list[str]:
    """One sentence for each job that one patch, or all of them, make worse without an explanation."""
    return [
        f"{record.release}: {job.id}{f', {patch_id} alone' if patch_id else ''}: {verdict.why}"
        for job, patch_id, verdict in _findings(record)
        if verdict.worse and not explanations.of(job, record.release, verdict, patch_id)
    ]


def faults(found: Sequence[Record]) -> Iterator[str]:
    """One sentence for each run that is missing, stale or unexplained."""
    used: set[str] = set()
    for record in found:
        for job in space.jobs_of(record.release):
            if record.current(job) is None:
                yield f"{record.release}: {job.id} is missing or stale: `{COMMAND} -- run {record.release}`"
        for patch_id in registry.catalogue():
            if records.judging_record(patch_id, found) is record and not record.is_proved(patch_id):
                how = f"`{COMMAND} -- run {record.release} --patch {patch_id}`"
                yield f"{record.release}: {patch_id} has changed, or its verdicts are lost: {how}"
        for job, patch_id, one in _findings(record):
            explained = explanations.of(job, record.release, one, patch_id)
            used.update(each.id for each in explained)
            if one.state in _EXPLAINED and not explained:
                yield f"{record.release}: {job.id}{f', {patch_id} alone' if patch_id else ''}: {one.state}: {one.why}"
    for each in explanations.EXPLANATIONS:
        if each.id not in used:
            yield f"explanation {each.id} explains nothing"


def worked_around(patch_id: str) -> list[str]:
    """The scripts that work around the patch's bug."""
    scripts = [f"`{name}`" for name, each in scenario.load().items() if patch_id in each.works_around]
    return [*scripts, *([f"`{WORKED_AROUND[patch_id]}`"] if patch_id in WORKED_AROUND else [])]


def _findings(record: Record) -> Iterator[tuple[Job, str, Verdict]]:
    """The verdicts on all patches (patch id "") and on single ones."""
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
        *(_explained(record) for record in found),
        _scenarios(),
    ]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts if part)


def _overview(found: Sequence[Record]) -> str:
    states = list(State)
    lines = [
        f"| release | jobs | {' | '.join(states)} | patch statements run | date |",
        f"| --- | --- | {' | '.join('---' for _ in states)} | --- | --- |",
    ]
    for record in found:
        counts = Counter(run.found.state for run in record.jobs.values())
        shares = [records.share(record, statement) for statement in record.statements]
        run, total = (sum(share[i] for share in shares) for i in (0, 1))
        numbers = " | ".join(str(counts[state]) for state in states)
        lines.append(f"| {record.release} | {len(record.jobs)} | {numbers} | {run} of {total} | {record.date} |")
    return "\n".join(lines)


def _patches(found: Sequence[Record]) -> str:
    lines = [
        "## The patches\n",
        f"Each patch is judged on {space.FULL_RECORD} or, if it does not apply there, on the newest of these releases",
        "where it does, if possible one with all scripts. Statements run: by any job; jobs: those that run them;",
        "disabled alone: the verdicts of jobs with all other patches (for one off by default: enabled on top of all",
        "others); added: the most that it adds to a job whose results stay the same, in collectives, waits of the host",
        "for the device, bytes of peak memory; worked around by: scripts of people who work around the bug, with the",
        "patch.\n",
        "| patch | release | statements run | jobs | disabled alone | added | worked around by |",
        "| --- | --- | --- | --- | --- | --- | --- |",
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
        around = ", ".join(worked_around(patch_id)) or "-"
        row = (patch_id, one.release, f"{one.run} of {one.statements}", one.jobs, states, added, around)
        lines.append(f"| {' | '.join(map(str, row))} |")
    if gaps:
        lines += ["", f"Gaps: no job runs a line of {', '.join(gaps)}."]
    tested = [f"{each} (`{TESTED[each]}`)" for each in nowhere if each in TESTED]
    if tested:
        lines += ["", f"Judged by a test instead, on a release that is not here: {', '.join(tested)}."]
    impossible = [f"{each} ({IMPOSSIBLE[each]})" for each in nowhere if each in IMPOSSIBLE]
    if impossible:
        lines += ["", f"No job here can run a line of these: {'; '.join(impossible)}."]
    nowhere = [each for each in nowhere if each not in TESTED and each not in IMPOSSIBLE]
    if nowhere:
        named = ", ".join(nowhere)
        lines += ["", f"These apply to none of these releases, or have not been judged alone yet: {named}."]
    return "\n".join(lines)


@dataclass(frozen=True)
class PatchUse:
    """A patch on the release where it is judged alone. run: how many of its statements any job ran; states: the
    verdicts on it alone; added: the most collectives, host waits and bytes of peak memory that it adds to an unchanged
    job, None if no job is unchanged."""

    release: str
    statements: int
    run: int
    jobs: int
    states: Mapping[str, int]
    added: tuple[int, int, int] | None


def of(patch_id: str, found: Sequence[Record]) -> PatchUse | None:
    """The patch's summary, or None if it applies to none of these releases."""
    record = records.judging_record(patch_id, found)
    if record is None:
        return None
    run, statements = records.share(record, patch_id)
    jobs = sum(patch_id in job.run for job in record.jobs.values())
    ones = [job.one[patch_id] for job in record.jobs.values() if patch_id in job.one]
    same = [one for one in ones if one.state == State.SAME]
    added = (
        tuple(max(getattr(each, name) for each in same) for name in ("collectives", "syncs", "peak")) if same else None
    )
    return PatchUse(record.release, statements, run, jobs, Counter(one.state for one in ones), added)


def _explained(record: Record) -> str:
    rows: dict[tuple[str, str], list[str]] = {}
    for job, patch_id, one in _findings(record):
        if one.state in _EXPLAINED:
            explained = explanations.of(job, record.release, one, patch_id)
            texts = " ".join(each.text for each in explained) or "not explained"
            setting = ", ".join(f"{name} {level}" for name, level in space.differing(job.setting).items())
            where = f"{job.scenario.name} ({setting or 'plain'}){f', {patch_id}' if patch_id else ''}"
            rows.setdefault((one.state, texts), []).append(
                f"{where}: {one.why} ({one.before:.3g} without, {one.after:.3g} with)"
            )
    if not rows:
        return ""
    parts = [f"## {record.release}\n"]
    for (state, text), jobs in sorted(rows.items()):
        parts.append(f"**{state}**: {text}\n")
        parts += [f"- {each}" for each in jobs]
        parts.append("")
    return "\n".join(parts)


def _scenarios() -> str:
    by_family: dict[str, list[str]] = {}
    for each in scenario.load().values():
        by_family.setdefault(each.family, []).append(f"- `{each.name}`: {each.title}")
    return "## The scripts\n\n" + "\n\n".join(
        f"`matrix/bystanders/scenarios/{family}.py`\n\n" + "\n".join(lines)
        for family, lines in sorted(by_family.items())
    )
