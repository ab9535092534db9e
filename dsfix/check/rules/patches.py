"""Known bugs of the release that this config triggers: one rule per patch whose condition the config alone shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Callable

from ...catalogue import registry
from ...catalogue.registry import Entry
from ...job import AUTO, Job
from ...patch import Severity
from ...rules import Level, Match, Rule, all_in_range, note
from ..facts import Facts

_PRECISIONS = ("fp16", "bf16")
_AREAS = ("engine", "offload", "optimizer", "precision", "scheduler", "zero12", "zero3")  # of accelerate's jobs
_SEVERITIES = (Severity.WRONG_RESULT, Severity.CRASH, Severity.HANG)
# what a patch needs, by a word of its id
_NEEDED: dict[str, Callable[[Facts], object]] = {
    "zero1": lambda facts: facts.stage in (None, 1),
    "zero12": lambda facts: facts.stage in (None, 1, 2),
    "zero2": lambda facts: facts.stage in (None, 2),
    "zero3": lambda facts: facts.stage in (None, 3),
    "stage0": lambda facts: facts.stage in (None, 0),
    "without": lambda facts: facts.stage in (None, 0),  # …_without_zero
    "init": lambda facts: facts.stage in (None, 3),  # zero.Init
    "bf16": lambda facts: facts.may_be("bf16"),
    "fp16": lambda facts: facts.may_be("fp16"),
    "half": lambda facts: facts.job.half,
    "offload": lambda facts: facts.device("offload_optimizer") != "none",
    "overlap": lambda facts: facts.get("zero_optimization", "overlap_comm") is True,
    "warmup": lambda facts: str(facts.get("scheduler", "type")).startswith("Warmup"),
}


def _with(job: Job, values: dict[str, Any]) -> Job:
    """Returns the job with these values at the top level, or for `enabled` of a precision."""
    config = dict(job.config)
    for name, value in values.items():
        config[name] = {**job.block(name), "enabled": value} if name in _PRECISIONS else value
    return dataclasses.replace(job, config=config)


def _open(job: Job) -> list[str]:
    """The keys still to be filled in that decide on bugs."""
    open_precisions = [name for name in _PRECISIONS if not job.plain and job.block(name).get("enabled") == AUTO]
    return open_precisions + [
        name for name in ("gradient_accumulation_steps", "gradient_clipping") if job.get(name) == AUTO
    ]


def _needs(meets: Callable[[Job], bool], job: Job) -> str:
    """Returns the values that "auto" must become for the bug, as text; "" if it is met in any case."""
    undecided = _open(job)
    needs = []
    for name in undecided:
        if name in _PRECISIONS:
            needs += [f"{name} {'off' if on else 'on'}" for on in (False, True) if not meets(_with(job, {name: on}))]
        elif name == "gradient_clipping":
            needs += ["gradient_clipping above 0"] if not meets(_with(job, {name: 0})) else []
        else:
            below = [steps for steps in (1, 2) if not meets(_with(job, {name: steps}))]
            needs += [f"gradient_accumulation_steps above {below[-1]}"] if below else []
    both = {name: False for name in _PRECISIONS if name in undecided}
    if not needs and both and not meets(_with(job, both)):
        needs = [" or ".join(both) + " on"]
    return ", ".join(needs)


def _in_any(meets: Callable[[Job], bool], job: Job) -> bool:
    """Whether every job in a half precision has the bug, which then says nothing about this config."""
    stages = [{"zero_optimization": {"stage": stage}} for stage in range(4)]
    bare = [[Job({**each, name: {"enabled": True}}, job.release) for each in stages] for name in _PRECISIONS]
    return any(all(map(meets, jobs)) for jobs in bare)


def _find(entry: Entry) -> Callable[[Facts], Iterator[Match]]:
    def find(facts: Facts) -> Iterator[Match]:
        meets = entry.patch.config
        if meets is not None and meets(facts.job) and not _needs(meets, facts.job):
            yield Match("", entry.patch.title)

    return find


@note(
    "set the final value with --model-args: bf16, fp16, gradient_accumulation_steps, max_grad_norm",
    "the conditions of the patches",
)
def bugs_with_auto(facts: Facts) -> Iterator[Match]:
    bugs: dict[str, list[str]] = {}
    for entry in registry.catalogue().values():
        meets = entry.patch.config
        if meets is None or not all_in_range(entry.patch.affects, facts.versions) or not meets(facts.job):
            continue
        if not _in_any(meets, facts.job):
            bugs.setdefault(_needs(meets, facts.job), []).append(entry.id)
    bugs.pop("", None)
    if bugs and not facts.unfilled:
        shown = "; ".join(f"with {needs}: {', '.join(ids)}" for needs, ids in bugs.items())
        yield Match("", f'known bugs that depend on the value of "auto": {shown}')


@note(
    "put `import dsfix` on the first line of the script; `python -m dsfix show ID` says which jobs are affected",
    "the patches without a condition, by area, severity, releases and ids",
)
def bugs_beyond_the_config(facts: Facts) -> Iterator[Match]:
    bugs: dict[str, list[str]] = {each.value: [] for each in _SEVERITIES}
    if not facts.filled_in or facts.unfilled:
        return
    for entry in registry.catalogue().values():
        patch = entry.patch
        affects = {name: releases for name, releases in patch.affects.items() if facts.versions.get(name)}
        anywhere = patch.config is None and patch.default and patch.severity in _SEVERITIES and entry.area in _AREAS
        needed = [_NEEDED[word] for word in entry.id.split("_") if word in _NEEDED]
        if anywhere and all_in_range(affects, facts.versions) and all(each(facts) for each in needed):
            bugs[patch.severity.value].append(entry.id)
    shown = "; ".join(f"{severity}: {', '.join(ids)}" for severity, ids in bugs.items() if ids)
    if shown:
        yield Match("", f"known bugs that depend on the model, its outputs or the script: {shown}")


BUGS = tuple(
    Rule(
        id=f"bug_{entry.id}",
        level=Level.NOTE,
        affects=entry.patch.affects,
        find=_find(entry),
        remedy="put `import dsfix` on the first line of the script",
        evidence=tuple(entry.patch.upstream) or ("the reproduction of the patch",),
        patches=(entry.id,),
    )
    for entry in registry.catalogue().values()
    if entry.patch.config is not None
)
