"""Related lines of a log: one traceback of one process, or the lines around a hit."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, takewhile

from .lines import TRACEBACK, Line, frame

_BEFORE, _AFTER = 500, 60  # lines of the same process around a hit
_LONGEST = 2000  # lines
_SHOWN = 300  # characters
END = "\x04"  # appended to the last line of a process in the last excerpt of a log
_CHAINED = re.compile(r"During handling of the above exception|The above exception was the direct cause")
_RAISED = re.compile(r"[A-Za-z_][\w.]*(?::|$)")
_OURS = re.compile(r".*[/\\](?=deepspeed[/\\]\w+(?:[/\\]|\.py$))")
_ELSEWHERE = re.compile(r".*(?:site|dist)-packages[/\\]|.*[/\\]")


@dataclass(frozen=True)
class Segment:
    """chained: a traceback that was raised while the one before it was handled. ends: the log ends after it."""

    lines: Sequence[Line]
    chained: bool
    ends: bool = False

    @cached_property
    def text(self) -> str:
        return "\n".join(line.text for line in self.lines) + ("\n" + END if self.ends else "")

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(len(line.text) + 1 for line in self.lines)]

    def line_at(self, position: int) -> Line:
        """Returns the line at this position of the text; for a long line, the part around it."""
        place = self._place(position)
        line, at = self.lines[place], position - self._starts[place]
        return line._replace(text=line.text[max(0, at - _SHOWN) : at + _SHOWN]) if len(line.text) > _SHOWN else line

    def _place(self, position: int) -> int:
        return min(bisect_right(self._starts, position), len(self.lines)) - 1

    def printed(self, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Returns the spans without those in a line of source, unless it asserts, or the exception is missing."""
        if not self.raised:
            return spans
        return [(start, end) for start, end in spans if not self._in_source(self._place(start), self._place(end - 1))]

    def _in_source(self, first: int, last: int) -> bool:
        text = self.lines[first].text
        if first != last or not text[:1].isspace() or "assert " in text or frame(text):
            return False
        above = (self.lines[place].text for place in range(first - 1, -1, -1))
        return any(map(frame, takewhile(lambda text: text[:1].isspace(), above)))

    @cached_property
    def raised(self) -> Line | None:
        """The line that names the exception; None without a traceback, or if its end is missing."""
        header = next((place for place, line in enumerate(self.lines) if TRACEBACK in line.text), None)
        if header is None:
            return None
        for line in self.lines[header + 1 :]:
            if not _inside_traceback(line.text):
                return line if _RAISED.match(line.text) else None
        return None


def segments(lines: Sequence[Line], hits: frozenset[int], ends: bool) -> Iterator[Segment]:
    """Yields the segments of each process that contain a hit, in the order of their first lines."""
    sources: dict[str, list[Line]] = {}
    for line in lines:
        sources.setdefault(line.source, []).append(line)
    segments = [each for of_one in sources.values() for each in _of_one_process(of_one, hits, ends)]
    yield from sorted(segments, key=lambda segment: segment.lines[0].number)


def hit_neighbourhoods(lines: Sequence[Line], hits: frozenset[int]) -> Iterator[Segment]:
    """Yields the lines of all processes around the hits, in the order of the log."""
    for begin, end in _spans(lines, hits, 0, len(lines)):
        yield Segment(lines[begin:end], chained=False)


def _of_one_process(lines: Sequence[Line], hits: frozenset[int], ends: bool) -> Iterator[Segment]:
    borders = [0, *_borders(lines), len(lines)]
    for start, stop in zip(borders, borders[1:]):
        for begin, end in _spans(lines, hits, start, stop):
            chained = any(_CHAINED.search(line.text) for line in lines[max(0, start - 3) : start])
            yield Segment(lines[begin:end], chained, ends and end == len(lines))


def _borders(lines: Sequence[Line]) -> Iterator[int]:
    """Yields where a traceback starts, and the position some lines after its exception.

    A header within another traceback starts none: two processes write interleaved lines to the same log.
    """
    inside, over = False, -1
    for place, line in enumerate(lines):
        if TRACEBACK in line.text:
            if not inside and place:
                yield place
            inside, over = True, -1
        elif inside and not _inside_traceback(line.text):
            inside, over = False, place + _AFTER
        elif place == over:
            yield place


def _inside_traceback(text: str) -> bool:
    return text[:1].isspace() or TRACEBACK in text


def _spans(lines: Sequence[Line], hits: frozenset[int], start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yields spans of lines around the hits from `start` to `stop`; nearby hits share a span."""
    places = [place for place in range(start, stop) if lines[place].number in hits]
    for group in _near(places):
        last = group[-1]
        while last + 1 < stop and _inside_traceback(lines[last + 1].text):
            last += 1
        yield max(start, group[0] - _BEFORE), min(stop, last + _AFTER + 1)


def _near(places: Iterable[int]) -> Iterator[list[int]]:
    group: list[int] = []
    for place in places:
        if group and (place - group[-1] > _BEFORE or place - group[0] > _LONGEST):
            yield group
            group = []
        group.append(place)
    if group:
        yield group


def raised_in(segment: Segment, raised: Line) -> str:
    """Returns the function that raised the error, and the last one of DeepSpeed; "" if no frame is there."""
    frames = [parts for line in segment.lines if line.number <= raised.number if (parts := frame(line.text))]
    if not frames:
        return ""
    ours = [each for each in frames if _OURS.match(each[0])]
    if not ours:
        hint = "DeepSpeed is not in the traceback; run once without it to see whether it is involved"
        return f"{_named(*frames[-1])}. {hint}."
    called = f", called from {_named(*ours[-1])}" if ours[-1] != frames[-1] else ""
    return f"{_named(*frames[-1])}{called}."


def _named(path: str, function: str) -> str:
    """Shows a path from the package on, or the name of a file that is in none."""
    match = _OURS.match(path) or _ELSEWHERE.match(path)
    return f"{path[match.end() if match else 0 :]}, in {function}".replace("\\", "/")
