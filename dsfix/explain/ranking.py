"""Orders the findings: the first error in time is the most likely cause."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from .recognise import LogPlace, LogReading, RecognisedProblem
from .signature import Role


class FindingRole(enum.Enum):
    """The role of a finding in this job."""

    CAUSE = "cause"  # the first error
    LATER = "later"  # another error, after it
    POSSIBLE = "possible"  # a message that has several causes
    FOLLOW_UP = "follow-up"
    NOTE = "note"
    EXCLUDED = "excluded"  # the message of a problem that the log's releases do not have


@dataclass(frozen=True)
class RankedFinding:
    """first: the first place in all logs."""

    recognised: RecognisedProblem
    role: FindingRole
    first: LogPlace


def rank_findings(reading: LogReading) -> list[RankedFinding]:
    """Returns the findings, the most likely cause first.

    An unknown error comes first if there are only follow-ups and notes. With a known cause, an unknown error is omitted
    unless it was earlier. What all versions in the logs exclude comes last.
    """
    named = reading.versions.alternatives()
    excluded = [
        found for found in reading.known.values() if (problem := found.problem) and all(map(problem.excluded_by, named))
    ]
    known = [found for found in reading.known.values() if found not in excluded]
    unknown = [found for found in reading.unknown.values() if found.count > 0]
    by_time = len(reading.files) > 1 and all(
        place.stamp for found in [*known, *unknown] for place in found.first.values()
    )

    def when(place: LogPlace) -> tuple[str, int, int]:
        return place.stamp if by_time else "", place.file, place.line

    def first(found: RecognisedProblem) -> LogPlace:
        return min(found.first.values(), key=when)

    def sort(some: list[RecognisedProblem]) -> list[RecognisedProblem]:
        return sorted(some, key=lambda found: when(first(found)))

    def of(*roles: Role) -> list[RecognisedProblem]:
        return sort([found for found in known if found.problem and found.problem.role in roles])

    causes, possible, notes = of(Role.CAUSE, Role.GENERAL), of(Role.POSSIBLE), of(Role.NOTE)
    if causes:
        notes += [found for found in sort(unknown) if when(first(found)) < when(first(causes[0]))][:1]
    elif not possible:
        causes = sort(unknown)[:1]
    order = [(found, FindingRole.LATER) for found in causes]
    order[:1] = [(found, FindingRole.CAUSE) for found, _ in order[:1]]
    order += [(found, FindingRole.POSSIBLE) for found in possible]
    if possible and not causes:
        for found in sort(unknown)[:1]:
            sooner = when(first(found)) < when(first(possible[0]))
            order.insert(0 if sooner else len(order), (found, FindingRole.CAUSE if sooner else FindingRole.LATER))
    order += [(found, FindingRole.FOLLOW_UP) for found in of(Role.FOLLOW_UP)]
    order += [(found, FindingRole.NOTE) for found in sort(notes)]
    order += [(found, FindingRole.EXCLUDED) for found in sort(excluded)]
    return [RankedFinding(found, role, first(found)) for found, role in order]
