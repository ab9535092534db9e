"""bugs/ID.md: all that is known of the bug of a patch."""

from __future__ import annotations

import ast
import inspect
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape as quoted
from typing import Callable

from packaging.version import Version

from dsfix.catalogue.registry import Entry
from dsfix.known_bugs import coverage
from dsfix.patch import RAN, Edit
from dsfix.versions import satisfies
from matrix.bystanders import docs as bystanders
from matrix.bystanders import records, scenario
from matrix.bystanders.comparison import State as Compared
from matrix.bystanders.comparison import Verdict
from matrix.bystanders.records import Record
from matrix.pages import text
from matrix.pages.evidence import Evidence
from matrix.proofs import State


def claimed(entry: Entry, releases: Iterable[str]) -> list[str]:
    """The releases that the patch is for."""
    return [release for release in releases if entry.patch.claims(release)]


def torches(affects: Mapping[str, str], known: Iterable[str]) -> list[str]:
    """Those of these minor versions of torch, such as "2.4", of which one at least is in the range."""
    specifiers = affects.get("torch", "")
    return [each for each in known if any(satisfies(specifiers, f"{each}.{last}") for last in range(10))]


def effect_phrases(entry: Entry) -> list[str]:
    """What a job's log says that the patch did; RAN where it says only that it ran."""
    edits = [change.effect for change in entry.patch.changes if isinstance(change, Edit) and change.effect]
    calls = [node for node in ast.walk(ast.parse(inspect.getsource(entry.module))) if isinstance(node, ast.Call)]
    calls = [call for call in calls if getattr(call.func, "id", "") == "took_effect"]
    sentences = [call.args[1].value for call in calls if isinstance(call.args[1], ast.Constant)]
    return list(dict.fromkeys([*edits, *(str(sentence).replace("%s", "…") for sentence in sentences)]))


def config(entry: Entry) -> str:
    """The condition on a job's config under which it meets the bug, as written in the patch; "" without one."""
    source = inspect.getsource(entry.module)
    keywords = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.keyword) and node.arg == "config")
    for keyword in keywords:
        if isinstance(keyword.value, ast.Lambda):
            return " ".join((ast.get_source_segment(source, keyword.value.body) or "").split())
    condition = entry.patch.config
    return inspect.getsource(condition) if condition else ""


def version_form(
    releases: Sequence[str], here: Sequence[str], torch: Sequence[str], with_torch: Sequence[str], needs: str = ""
) -> str:
    """The form that tells whether one's own versions have the bug; a script fills it in. needs: `text.beside`."""
    data = {"releases": releases, "affected": here, "torches": torch, "with": with_torch, "needs": [needs]}
    fields = " ".join(f'data-{name}="{quoted(" ".join(values))}"' for name, values in data.items())
    return f'```{{raw}} html\n<form class="mine" hidden {fields}></form>\n```\n'


def block(language: str, content: str) -> str:
    """A block of code."""
    return f"~~~~~{language}\n{content.rstrip()}\n~~~~~\n"


def render(entry: Entry, found: Evidence, jobs: Sequence[Record], diff: str | None, seen: str) -> str:
    """The page. diff: None without the source of the last release; seen: the error of a real run, or ""."""
    patch, here = entry.patch, claimed(entry, found.releases)
    torch = torch_versions(found)
    beside = text.beside(patch)
    parts = [
        f"---\norphan: true\n---\n\n# {text.escape(patch.title)}\n",
        f"`{entry.id}` · {patch.severity.value} · {coverage.area(entry)} · "
        f"DeepSpeed {text.affected(patch, found.releases)}"
        f"{f' · with {text.escape(beside)}' if beside else ''}\n",
        version_form(found.releases, here, torch, torches(patch.affects, torch), beside),
        _remedy(entry, here[-1]),
        "## What users see\n",
        *_seen(entry, seen),
        *_story(entry, found),
        "## What the patch changes\n",
        *changes(entry, here[-1], diff),
        "## Whether it took effect\n",
        *_effect(entry),
        "## Proof\n",
        *_proof(entry, found),
        *_bystanders(entry.id, jobs),
        "## Upstream\n",
        "".join(f"- [{text.short_link(link)}]({link}): {text.escape(what)}\n" for link, what in patch.upstream.items())
        or "Nothing is reported.\n",
    ]
    return "\n".join(parts)


def torch_versions(found: Evidence) -> list[str]:
    """The minor versions of torch that people can have."""
    newest = max(Version(environment.torch) for environment in found.table.environments.values())
    return [f"2.{minor}" for minor in range(newest.minor + 1)]


def _remedy(entry: Entry, last: str) -> str:
    patch = entry.patch
    enough = "" if patch.default else f" with `DSFIX_ALSO={entry.id}`, as this patch is off by default"
    fixed = f", or DeepSpeed {patch.fixed_in} or later" if patch.fixed_in else ""
    continued = f" In later releases [{patch.continued_by}]({patch.continued_by}.md) continues it." * bool(
        patch.continued_by
    )
    return f"What helps: `import dsfix` on the first line of the script{enough}{fixed}.{continued}\n"


def _seen(entry: Entry, seen: str) -> Iterator[str]:
    patch = entry.patch
    if seen:
        yield block("text", seen)
    if patch.symptom:
        yield f"The log matches {text.code(patch.symptom)}.\n"
    else:
        yield "No error and no line of a log shows it.\n"
    if condition := config(entry):
        yield "A job has it if its config, as `python -m dsfix check ds_config.json` reads it, fulfils\n"
        yield block("python", condition)


def _story(entry: Entry, found: Evidence) -> Iterator[str]:
    ids = "|".join(re.escape(each.id) for each in found.entries)
    for heading, body in text.story(entry).items():
        linked = re.sub(rf"(?<![\w/`])({ids})(?![\w`])", r"[\1](\1.md)", text.escape(body[:1].upper() + body[1:]))
        yield f"## {heading}\n\n{linked}\n"


def changes(entry: Entry, last: str, diff: str | None) -> Iterator[str]:
    """What the patch changes. diff: None without the source of the last release with the bug."""
    made = entry.patch.changes
    if diff:
        yield f"In DeepSpeed {last}:\n"
        yield block("diff", diff)
    elif any(isinstance(each, Edit) for each in made):
        yield (
            f"The source of DeepSpeed {last} was not there when this page was built, so the diff is not; "
            f"`python -m dsfix diff {entry.id}` prints it for the installed release.\n"
        )
    helpers: list[Callable[..., object]] = []
    for each in made:
        if isinstance(each, Edit):
            helpers += each.uses
        else:
            yield f"`{type(each).__name__}` of `{each.target}`: sets it when DeepSpeed is imported.\n"
            helpers.append(each.factory)
    for helper in dict.fromkeys(helpers):
        yield block("python", inspect.cleandoc(f"\n{inspect.getsource(helper)}"))


def _effect(entry: Entry) -> Iterator[str]:
    effects = effect_phrases(entry)
    for effect in effects:
        if effect != RAN:
            yield f"The first time that it changes a result, the job's log says: “{text.escape(effect)}”.\n"
    if RAN in effects:
        yield "The report of a job says that its code ran; whether a result changed, only the device knows.\n"
    if not effects:
        yield "The log does not say: `dsfix.report()` shows that it was applied, not whether it changed a result.\n"


def _proof(entry: Entry, found: Evidence) -> Iterator[str]:
    for column in found.columns:
        cells = found.cells[entry.id][column.name]
        if column is found.columns[0] or any(each.cell for each in cells.values()):
            yield f"- {column.name}: {text.proven(found, entry.id, column)}"
    fixed = [
        (Version(release), release, judged.cell)
        for cells in found.cells[entry.id].values()
        for release, judged in cells.items()
        if judged.cell is not None and judged.state is State.FIXED
    ]
    if fixed:
        _, release, cell = max(fixed, key=lambda each: each[0])
        without, patched = (text.escape(" ".join(run.detail.split())) for run in (cell.without, cell.patched))
        yield f"\nSeen on {release} without the patch: {without}. With it: {patched}.\n"
    yield f"\n`python -m dsfix verify {entry.id}` runs the reproduction in your environment.\n"


def _bystanders(patch_id: str, jobs: Sequence[Record]) -> Iterator[str]:
    one = bystanders.of(patch_id, jobs)
    record = records.judging_record(patch_id, jobs)
    ones = {job: run.one[patch_id] for job, run in record.jobs.items() if patch_id in run.one} if record else {}
    same = {job: each for job, each in ones.items() if each.state == Compared.SAME}
    # a job that ended early without the patch did less
    right = [each for each in ones.values() if each.state == Compared.RIGHT and math.isfinite(each.before)]
    kinds = {"stay the same": list(same.values()), "are corrected": right}
    yield "## What it costs\n"
    if one and (rows := [(kind, *map(str, (len(each), *_added(each)))) for kind, each in kinds.items() if each]):
        yield (
            f"On {one.release}, with small models, a job has at most so many more collectives, waits of the host for "
            "the device and bytes of peak memory than without this patch:\n"
        )
        yield text.table(("results", "jobs", "collectives", "host waits", "peak bytes"), rows)
    else:
        yield "What it adds to a job is not measured.\n"
    yield "[What all patches together cost](../docs/overhead.md), at import and in a step.\n"
    yield "## Jobs that stay the same\n"
    if not one or not one.jobs:
        yield "No job of the [record](../results/bystanders.md) runs its code.\n"
        return
    yield f"On {one.release}, [{one.jobs} jobs](../results/bystanders.md) run its code.\n"
    scripts = scenario.load()
    names = dict.fromkeys(job.partition("-")[0] for job in same)
    if titles := [scripts[name].title for name in names if name in scripts]:
        yield f"Bitwise the same with this patch as without it: {len(same)} of them.\n"
        yield "```{raw} html\n<details><summary>Their scripts</summary>\n```\n"
        yield "".join(f"- {text.escape(title)}\n" for title in titles)
        yield "```{raw} html\n</details>\n```\n"


def _added(verdicts: Iterable[Verdict]) -> list[int]:
    return [
        max(0, *counts) for counts in zip(*((verdict.collectives, verdict.syncs, verdict.peak) for verdict in verdicts))
    ]
