"""Reads logs and collects the problems recognised in them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from . import problems
from .boxes import unboxed
from .excerpts import Excerpt, Excerpts
from .lines import TRACEBACK, Cleaner, Line
from .mentions import LITERALS, Versions
from .problems import Problem
from .segments import Segment, hit_neighbourhoods, raised_in, segments
from .signature import Role
from .stream import UnreadableLog, blocks

_MOST_UNKNOWN = 1000  # distinct errors
_MOST_SOURCES = 10_000  # ranks of one finding
_Matches = Mapping[str, list[tuple[int, int]]]
_USER = re.compile(r"(KeyboardInterrupt|SystemExit)\b")
_CAUSES = (Role.CAUSE, Role.GENERAL, Role.POSSIBLE)  # the more specific first


@dataclass(frozen=True)
class LogPlace:
    """A line of a log; file: index of the file; text: without prefixes."""

    file: int
    line: int
    text: str
    stamp: str


@dataclass
class RecognisedProblem:
    """One problem, or (problem is None) one unknown error, in all logs.

    first: the first place in each file. sources: the processes, as far as the lines name them. patches: those whose
    symptoms were seen. where: the origin of an unknown error, from its traceback.
    """

    problem: Problem | None
    count: int = 0
    first: dict[int, LogPlace] = field(default_factory=dict)
    sources: set[str] = field(default_factory=set)
    patches: set[str] = field(default_factory=set)
    where: str = ""

    def add(self, file: int, line: Line) -> None:
        self.count += 1
        before = self.first.get(file)
        if before is None or line.number < before.line:
            self.first[file] = LogPlace(file, line.number, line.text, line.stamp)
        if line.source and len(self.sources) < _MOST_SOURCES:
            self.sources.add(line.source)


@dataclass
class LogFile:
    """A file as far as it was read; size: unpacked bytes; trouble: why it was not read completely, else ""."""

    name: str
    size: int = 0
    lines: int = 0
    trouble: str = ""


class LogReading:
    """What some logs show. known: by id of the problem; unknown: by the error with its numbers replaced."""

    def __init__(self) -> None:
        self.files: list[LogFile] = []
        self.known: dict[str, RecognisedProblem] = {}
        self.unknown: dict[str, RecognisedProblem] = {}
        self.versions = Versions()
        self._literals = problems.literals() | {TRACEBACK, *LITERALS}

    def read(self, name: str) -> None:
        """Reads one more file, "-" for standard input; errors are recorded in `files`."""
        file = LogFile(name)
        self.files.append(file)
        one = _FileReader(self, len(self.files) - 1)
        excerpts = Excerpts(self._literals)
        for excerpt in excerpts.of(_content(file)):
            one.look_at(excerpt)
        file.size, file.lines = excerpts.size, excerpts.lines


def _content(file: LogFile) -> Iterator[bytes]:
    try:
        yield from blocks(file.name)
    except UnreadableLog as reason:
        file.trouble = str(reason)


class _FileReader:
    def __init__(self, reading: LogReading, file: int) -> None:
        self._reading, self._file = reading, file
        self._cleaner = Cleaner()
        self._last: dict[tuple[str, str], int] = {}  # problem and process -> the last line counted
        # process -> whether its last chain of errors is known, and its first error
        self._chain: dict[str, tuple[bool, str]] = {}

    def look_at(self, excerpt: Excerpt) -> None:
        lines = unboxed(self._cleaner.lines(excerpt.text, excerpt.first))
        for line in lines:
            if line.number in excerpt.hits:
                self._reading.versions.look_at(line.text)
        for segment in segments(lines, excerpt.hits, excerpt.ends):
            self._look_at_segment(segment, excerpt.hits)
        for lines_of_all in hit_neighbourhoods(lines, excerpt.hits):
            for problem in problems.possible(lines_of_all.text):
                if problem.spread and (matches := problem.matches(lines_of_all)):
                    self._count(problem, matches, lines_of_all)

    def _look_at_segment(self, segment: Segment, hits: frozenset[int]) -> None:
        possible = problems.possible(segment.text)
        matched = [(problem, matches) for problem in possible if (matches := problem.matches(segment))]
        best = min((_CAUSES.index(problem.role) for problem, _ in matched if problem.role in _CAUSES), default=None)
        explained = False
        for problem, matches in matched:
            explained |= problem.role in _CAUSES or bool(_of_traceback(matches, segment))
            if problem.role not in _CAUSES or _CAUSES.index(problem.role) == best:
                self._count(problem, matches, segment)
        if segment.raised:
            self._follow(segment, segment.raised, explained, hits)

    def _count(self, problem: Problem, matches: _Matches, segment: Segment) -> None:
        lines = _of_traceback(matches, segment)[-1:]  # count it once: its frames may contain its message
        if not lines:
            ends = sorted(end for recognised in matches.values() for _, end in recognised)
            lines = [segment.line_at(end - 1) for end in ends]
        for line in lines:
            key = problem.id, line.source
            if line.number > self._last.get(key, 0):
                self._last[key] = line.number
                recognised = self._reading.known.setdefault(problem.id, RecognisedProblem(problem))
                recognised.add(self._file, line)
                recognised.patches |= matches.keys() - {""}

    def _follow(self, segment: Segment, raised: Line, known: bool, hits: frozenset[int]) -> None:
        """Records an unknown error: the first of a chain, unless another error of the chain is known."""
        unknown = self._reading.unknown
        if segment.chained and raised.source in self._chain:
            chain_known, error = self._chain[raised.source]
            if known and not chain_known and error in unknown:
                unknown[error].count -= 1
            self._chain[raised.source] = known or chain_known, error
            return
        error = re.sub(r"\d+", "0", raised.text)
        self._chain[raised.source] = known, error
        new = hits & {line.number for line in segment.lines if TRACEBACK in line.text}  # not in an excerpt before
        if known or not new or _USER.match(error):
            return
        if error in unknown or len(unknown) < _MOST_UNKNOWN:
            recognised = unknown.get(error)
            if not recognised:
                recognised = unknown[error] = RecognisedProblem(None, where=raised_in(segment, raised))
            recognised.add(self._file, raised)


def _of_traceback(matches: _Matches, segment: Segment) -> list[Line]:
    """Returns the lines of matches within the segment's traceback; for matches beyond it, the exception's line."""
    if not (raised := segment.raised):
        return []
    spans = sorted(span for spans_of_patch in matches.values() for span in spans_of_patch)
    return [
        min(segment.line_at(end - 1), raised, key=lambda line: line.number)
        for start, end in spans
        if segment.line_at(start).number <= raised.number
    ]
