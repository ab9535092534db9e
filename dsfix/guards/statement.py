"""What one rank reports about itself, and how the ranks of a job differ; needs neither torch nor a process group."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from .. import __version__, process, versions
from ..outcome import Outcome, shortened_list

_FIXED = {Outcome.APPLIED.value, Outcome.PENDING.value}
_ABSENT = "not in the catalogue"
_NEVER_APPLIED = {Outcome.DISABLED.value, _ABSENT}  # even once the module is imported
_NOT_FIXED = _NEVER_APPLIED | {Outcome.DRIFTED.value, Outcome.CONFLICT.value, Outcome.FAILED.value}
_SHOWN = 5  # patches that are named per difference


@dataclass(frozen=True)
class Statement:
    """versions: distribution -> version; outcomes: patch id -> outcome; reasons: of unfixed bugs."""

    versions: Mapping[str, str]
    outcomes: Mapping[str, str]
    reasons: Mapping[str, str]

    @classmethod
    def of_this_process(cls) -> Statement:
        states = process.current_states()
        return cls(
            {"dsfix": __version__, **{name: versions.installed(name) or "" for name in ("deepspeed", "torch")}},
            {state.summary.id: state.outcome.value for state in states},
            {state.summary.id: state.reason for state in states if state.outcome.value in _NOT_FIXED},
        )

    @property
    def digest(self) -> str:
        """Equal on ranks that do not differ; excludes reasons, which may contain paths."""
        return hashlib.sha256(json.dumps([self.versions, self.outcomes]).encode()).hexdigest()[:16]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Statement:
        return cls(**json.loads(text))


Group = tuple[list[int], Statement]
"""Ranks with equal statements, in order, and the statement."""


def differences(groups: list[Group]) -> dict[tuple[int, ...], list[str]]:
    """Ranks -> how they differ from most others; empty if no ranks differ.

    Not a difference: a module that some ranks have not imported yet (`pending`), a bug that some ranks do not have
    (`not-affected`, `already-fixed`, `unproven`).
    """
    ranks_by_text: dict[str, list[int]] = {}
    for ranks, text in (*_versions(groups), *_patches(groups)):
        ranks_by_text.setdefault(text, []).extend(ranks)
    merged: dict[tuple[int, ...], list[str]] = {}
    for text, where in ranks_by_text.items():
        merged.setdefault(tuple(sorted(where)), []).append(text)
    return merged


def _versions(groups: list[Group]) -> Iterator[tuple[list[int], str]]:
    for name in groups[0][1].versions:
        by_version: dict[str, list[int]] = {}
        for ranks, statement in groups:
            by_version.setdefault(statement.versions[name] or "of unknown version", []).extend(ranks)
        usual = max(by_version, key=lambda version: _weight(by_version[version]))
        for version, ranks in by_version.items():
            if version != usual:
                yield ranks, f"{name} {version}, elsewhere {usual}"


def _patches(groups: list[Group]) -> Iterator[tuple[list[int], str]]:
    kinds: dict[tuple[int, str, str, str], list[str]] = {}  # group and texts -> patches
    for patch_id in dict.fromkeys(each for _, statement in groups for each in statement.outcomes):
        outcomes = [statement.outcomes.get(patch_id, _ABSENT) for _, statement in groups]
        if not _is_difference(set(outcomes)):
            continue
        fixed = [number for number, outcome in enumerate(outcomes) if outcome in _FIXED]
        not_fixed = [number for number, outcome in enumerate(outcomes) if outcome in _NOT_FIXED]
        few, most = sorted(
            (fixed, not_fixed), key=lambda side: _weight([r for number in side for r in groups[number][0]])
        )
        for number in few:
            why = groups[number][1].reasons.get(patch_id, "")
            kinds.setdefault((number, outcomes[number], why, outcomes[most[0]]), []).append(patch_id)
    for (number, outcome, why, usual), ids in kinds.items():
        yield (
            groups[number][0],
            f"{shortened_list(ids, _SHOWN)}: {outcome}{f' ({why})' if why else ''}, elsewhere {usual}",
        )


def _is_difference(outcomes: set[str]) -> bool:
    """Whether some ranks have, or will have, a fix that others certainly lack."""
    return (Outcome.APPLIED.value in outcomes and bool(outcomes & _NOT_FIXED)) or (
        Outcome.PENDING.value in outcomes and bool(outcomes & _NEVER_APPLIED)
    )


def _weight(ranks: list[int]) -> tuple[int, bool]:
    """Sort key of the usual side: most ranks; in a tie, rank 0's."""
    return len(ranks), 0 in ranks
