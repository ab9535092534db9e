"""The possibilities: problems by the vocabulary's names that a sentence has, bugs by all words that they share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from ...catalogue import registry
from ...upstream import table
from ...upstream.coverage import Bug
from ..problems import Problem, known
from ..recognise import Reading
from ..signature import Role
from . import bugs, prose
from .kinds import OTHERWISE, WAYS
from .symptoms import SYMPTOMS
from .words import is_of_the_field, named, plain, words

_LONGEST = 4000  # characters of a text that is looked at
_MOST = 3
_NEAR, _SHARED = 4.3, 3  # how near a bug's words must be, and how many of them must be shared
_NEAR_LATER = 6.0  # with words of a sentence after the title
# what reports of most problems name
_VAGUE = frozenset(
    (
        *("abnormal", "differs", "excess", "fails", "how", "later", "loading", "lower", "results", "resuming"),
        *("saving", "wrong", "adapter", "baseline", "checkpoint", "model", "more gpus", "nodes", "several gpus"),
        *("training", "zero-1", "zero-2", "zero-3"),
    )
)
_RELEASE = re.compile(r"(?i)deep ?speed[\s\W]{0,3}(?:version[\s\W]{0,3}|ver\.? ?|v)?(0\.\d{1,2}\.\d{1,2})(?![\d.]*\d)")


@dataclass(frozen=True)
class Possibility:
    """A problem or a bug, and the words by which the text may be about it."""

    id: str
    title: str
    what: str
    affects: tuple[Mapping[str, str], ...]
    patches: tuple[str, ...]
    remedy: str
    evidence: tuple[str, ...]
    words: tuple[str, ...]


def possibilities(reading: Reading) -> list[Possibility]:
    """Returns at most three, the closest first; none if the text is long or a problem was recognised, other than a
    family of messages, beside which only what is more specific is told."""
    if not may_be_asked(reading):
        return []
    roles = _roles(reading)
    (text,) = reading.short
    spoken = [plain(sentence) for sentence in prose.sentences(text)]
    if not is_of_the_field(" ".join(spoken)):
        return []
    named_there = versions(reading)
    of_kinds = [
        each
        for each in _kinds(spoken, named_there)
        if not roles - {Role.NOTE} or (_is_telling(each) and each.id not in reading.known)
    ]
    of_bugs = list(_bugs(spoken, named_there))[: _MOST - bool(of_kinds)]
    return [*of_bugs, *of_kinds[: _MOST - len(of_bugs)]]


def _is_telling(possibility: Possibility) -> bool:
    """Whether it can be more than what a recognised family says: not one word, and not another family by words that
    most reports have."""
    is_family = any(each.id == possibility.id and each.role is Role.FAMILY for each in known())
    return len(possibility.words) > 1 and not (is_family and _VAGUE.issuperset(possibility.words))


def may_be_asked(reading: Reading) -> bool:
    """Whether it is one short text, and no problem was recognised, other than a family of messages."""
    is_short = len(reading.files) == 1 and bool(reading.short) and len(reading.short[0]) <= _LONGEST
    return is_short and not _roles(reading) - {Role.NOTE, Role.FAMILY}


def versions(reading: Reading) -> list[Mapping[str, str]]:
    """Returns what the text names, distribution -> version, once for each release of DeepSpeed; "DeepSpeed 0.16.4" is
    enough here, which a log has in sentences about other releases."""
    before: list[Mapping[str, str]] = [*reading.versions.alternatives()]
    releases = dict.fromkeys(release for text in reading.short for release in _RELEASE.findall(text))
    return [{**before[0], "deepspeed": each} for each in releases] or before


def _roles(reading: Reading) -> set[Role]:
    """Returns the roles of what was recognised; that the memory is out tells as little as a family."""
    problems = [found.problem for found in reading.known.values() if found.problem]
    return {Role.FAMILY if problem.id == "out_of_memory" else problem.role for problem in problems}


def _kinds(spoken: Sequence[str], named_there: Sequence[Mapping[str, str]]) -> Iterator[Possibility]:
    """Yields the problems whose symptoms are all in one sentence, and whose other names in it or in the title; those
    with more names first, and those whose names are among another one's not at all."""
    by_id = {problem.id: problem for problem in known()}
    title, *others = map(named, spoken)
    found: dict[str, frozenset[str]] = {}
    for id, ways in WAYS.items():
        told = title if OTHERWISE.get(id, frozenset()).isdisjoint(title) else frozenset()
        later = [other for other in others if told and OTHERWISE.get(id, frozenset()).isdisjoint(other)]
        fitting = [
            names
            for names in ways
            if names <= told
            or (not _is_lone(names) and any(names <= other | (title - SYMPTOMS.keys()) for other in later))
        ]
        if fitting and not all(map(by_id[id].excluded_by, named_there)):
            found[id] = max(fitting, key=len)
    for id, names in sorted(found.items(), key=lambda each: -len(each[1])):
        if not any(names < more for more in found.values()):
            yield _of_problem(by_id[id], names)


def _is_lone(names: frozenset[str]) -> bool:
    """Whether the names tell something only of what the title complains about: one symptom."""
    return len(names) == 1 and names <= SYMPTOMS.keys()


def _bugs(spoken: Sequence[str], named_there: Sequence[Mapping[str, str]]) -> Iterator[Possibility]:
    releases = [Version(each["deepspeed"]) for each in named_there if _is_release(each.get("deepspeed", ""))]
    title, *others = map(words, spoken)
    found: dict[str, bugs.Near] = {}
    for window, least in [(title, _NEAR), *((title | other, _NEAR_LATER) for other in others)]:
        for near in bugs.near(window, releases):
            if near.closeness >= least and len(near.shared) >= _SHARED:
                found[near.bug.row.key] = max(near, found.get(near.bug.row.key, near), key=lambda each: each.closeness)
    for near in sorted(found.values(), key=lambda each: -each.closeness):
        yield _of_bug(near)


def _is_release(text: str) -> bool:
    """What a text has for a version may be "0.14.x" or the end of a sentence."""
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def _of_problem(problem: Problem, names: Iterable[str]) -> Possibility:
    return Possibility(
        id=problem.id,
        title=problem.title,
        what=problem.what,
        affects=problem.affects,
        patches=problem.patches,
        remedy=problem.remedy,
        evidence=problem.evidence,
        words=tuple(sorted(names)),
    )


def _of_bug(near: bugs.Near) -> Possibility:
    row = near.bug.row
    last = f",<={row.last}" if row.last else ""
    return Possibility(
        id=row.key,
        title=row.bug,
        what="",
        affects=({"deepspeed": f">={row.first}{last}"},),
        patches=tuple(cover.id for cover in near.bug.covers if cover.id in registry.catalogue()),
        remedy=" ".join(_remedies(near.bug)),
        evidence=row.urls,
        words=near.shared,
    )


def _remedies(bug: Bug) -> Iterator[str]:
    by_id = {problem.id: problem for problem in known()}
    explained = [by_id[name].remedy for kind, name in bug.row.states if kind == "explain"]
    yield from explained
    yield from (f"`python -m dsfix check CONFIG`: {name}." for kind, name in bug.row.states if kind == "check")
    if not explained:
        later = [each for each in table.load().releases if bug.row.last and each > bug.row.last]
        yield f"DeepSpeed {later[0]} or later." if later else "No DeepSpeed release has a fix yet."
