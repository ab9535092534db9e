"""The page of the site, from the records and their explanations."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from dsfix.catalogue import registry
from matrix.sweep import classes, covering, records, space
from matrix.sweep.explanations import EXPLANATIONS, Explanation, fitting
from matrix.sweep.records import Class, Found, Record, Run
from matrix.sweep.space import Row

COMMAND = "python -m tox run -e sweep"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_ADDRESS = re.compile(r"\b(?:\d{12,}|0x[0-9a-f]+)\b")  # an object's id, different in each run

_HEAD = f"""# The sweep

`python -m dsfix audit` compares one config with plain PyTorch; the sweep does so over the space of configs
(`matrix/sweep/space.py`): {{factors}} factors and {{configs}} configs. {{without}} of them contain all compatible pairs
of levels, and all compatible triples of {{core}}. In the other {{scheduled}} the streams of the emulated CUDA device
follow a schedule ([late, ahead or random](../docs/emulated-device.md#with-a-schedule)) and races are looked for;
each schedule occurs with each level of {{streams}}. Each config is run on a release without and with dsfix, in separate
processes, on that device.

    {COMMAND} -- run 0.19.8

runs the configs that are not in the record yet. "Without dsfix" means without its patches,
except those needed to import the release with this torch. A disagreement is reduced to the fewest options that show it;
all other options are then plain: {{plain}}. An option is also plain on releases that do not have its level: {{later}}.
"""


def faults(found: Sequence[Record], explanations: Sequence[Explanation] = EXPLANATIONS) -> Iterator[str]:
    """One sentence for each run that is missing, and each disagreement without a class or explanation.

    A release may be without all configs that have a schedule.
    """
    rows = {space.identify(row): row for row in covering.load()}
    patches = registry.catalogue()
    used: set[str] = set()
    for record in found:
        for config, row in rows.items():
            for variant in records.VARIANTS:
                run = record.runs.get(config, {}).get(variant)
                if run is None and _is_scheduled(row) and not _scheduled(record, rows):
                    continue
                if run is None:
                    yield f"{record.release}: config {config} was not run {variant} dsfix: `{COMMAND} -- run` runs it"
                    continue
                for shown in classes.findings(run):
                    if not any(classes.holds(each, variant, row, shown) for each in record.classes):
                        yield f"{record.release}: config {config} {variant} dsfix: no class: {_finding(shown)}"
        for each in record.classes:
            for patch in each.patches:
                if patch not in patches:
                    yield f"{record.release}: {patch} is not a patch: `{COMMAND} -- run {record.release} --again`"
            explained = fitting(each, record.release, explanations)
            used.update(one.id for one in explained)
            if not each.patches and not explained:
                yield f"{record.release}: {_levels(each.minimal)}: {_shown(each)}: not explained"
    for one in explanations:
        if one.id not in used:
            yield f"explanation {one.id} explains nothing"


def _is_scheduled(row: Row) -> bool:
    return row["schedule"] != space.plain()["schedule"]


def _scheduled(record: Record, known: Mapping[str, Row]) -> list[str]:
    """The configs with a schedule that were run; none on a release that was left out."""
    return [config for config in record.runs if config in known and _is_scheduled(known[config])]


def render(found: Sequence[Record], explanations: Sequence[Explanation] = EXPLANATIONS) -> str:
    rows = covering.load()
    known = {space.identify(row): row for row in rows}
    parts = [
        _HEAD.format(
            factors=len(space.FACTORS),
            configs=len(rows),
            core=", ".join(covering.CORE),
            without=len(rows) - sum(map(_is_scheduled, rows)),
            scheduled=sum(map(_is_scheduled, rows)),
            streams=", ".join(covering.STREAMS),
            plain=", ".join(f"{name} {level}" for name, level in space.plain().items()),
            later=", ".join(
                f"{name} {level} ({each.releases})"
                for name, levels in space.FACTORS.items()
                for level, each in levels.items()
                if each.releases
            ),
        ),
        _overview(found, known),
    ]
    for record in found:
        parts.append(_release(record, known, explanations))
    if explanations:
        parts.append("## Explanations\n\n" + "\n\n".join(_explanation(one) for one in explanations))
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _overview(found: Sequence[Record], known: Mapping[str, Row]) -> str:
    lines = [
        "| release | configs | with a schedule | comparisons | disagree without dsfix | with it | date |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for record in found:
        runs = [record.runs[config] for config in known if config in record.runs]
        comparisons = sum(run.comparisons for each in runs for run in each.values())
        disagreeing = [sum(bool(classes.findings(each[variant])) for each in runs) for variant in records.VARIANTS]
        scheduled = len(_scheduled(record, known))
        lines.append(
            f"| [{record.release}](#{record.release.replace('.', '')}) | {len(runs)} | {scheduled} | {comparisons} | "
            f"{disagreeing[0]} | {disagreeing[1]} | {record.date} |"
        )
    return "\n".join(lines) + "\n"


def _release(record: Record, known: Mapping[str, Row], explanations: Sequence[Explanation]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items() if name != "deepspeed")
    lines = [f"## {record.release}", "", f"{record.device}; {versions}.", ""]
    lines += ["| fewest options | disagreement | configs | cause |", "| --- | --- | --- | --- |"]
    for each in sorted(record.classes, key=lambda each: (each.variant, not each.patches, sorted(each.minimal.items()))):
        lines.append(_class(each, record, known, explanations))
    return "\n".join(lines) + "\n"


def _class(each: Class, record: Record, known: Mapping[str, Row], explanations: Sequence[Explanation]) -> str:
    configs = [
        config
        for config, runs in record.runs.items()
        if config in known and _shows(each, known[config], runs.get(each.variant))
    ]
    explained = fitting(each, record.release, explanations)
    causes = [f"fixed by [{patch}](../bugs/{patch}.md){_if_off(patch)}" for patch in each.patches]
    causes += [f"[{one.kind.value}: {one.id}](#{one.id})" for one in explained] if not each.patches else []
    return f"| {_levels(each.minimal)} | {_shown(each)} | {len(configs)} | {', '.join(causes)} |"


def _if_off(patch_id: str) -> str:
    """A remark if the patch is off by default now, even if it was on when the configs were run."""
    entry = registry.catalogue().get(patch_id)
    return "" if entry is None or entry.patch.default else " (off by default)"


def _shows(found: Class, row: Row, run: Run | None) -> bool:
    return run is not None and any(classes.holds(found, found.variant, row, one) for one in classes.findings(run))


def _explanation(one: Explanation) -> str:
    return " ".join([f"### {one.id}\n\n({one.kind.value})", one.text, *(f"<{link}>" for link in one.links)])


def _levels(minimal: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {level}" for name, level in minimal.items()) or "none"


def _shown(found: Class) -> str:
    also = ", ".join(dict.fromkeys(each.what for each in found.shown[1:] if each.what != found.shown[0].what))
    return _finding(found.shown[0]) + (f"; also {also}" if also else "")


def _finding(found: Found) -> str:
    where = "" if found.phase == "training" else f" after {found.phase}"
    if found.what == records.RACE:
        return f"race: {_escaped(found.detail)}"
    if found.what in ("error", "failed"):
        return f"{found.what}{where}: {_escaped(found.detail)}"
    names = f" of {found.names[0]}" if found.names else ""
    if found.detail:
        return f"{found.what}{names}{where}, step {found.step}: {_escaped(found.detail)}"
    got = "absent" if math.isnan(found.got) else f"{found.got:.4g}"
    return f"{found.what}{names}{where}, step {found.step}: {got} instead of {found.wanted:.4g}"


def _escaped(text: str) -> str:
    return _ADDRESS.sub("…", _COLOUR.sub("", text)).replace("|", "\\|").replace("<", "&lt;").replace("`", "'")
