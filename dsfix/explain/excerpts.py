"""Finds the parts of a log that contain given strings, in bounded memory."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from .literals import Literals

_ZONE = 4 << 20  # bytes that are searched at a time
# bytes around a hit: tracebacks of many ranks may be interleaved, and the message comes last
_BEFORE = 512 << 10
_AFTER = 256 << 10
# the lines of a log repeat apart from their numbers; a progress bar rewrites its line
_DIGITS = b"0123456789"
_LINE_BREAKS = bytes.maketrans(b"\r", b"\n")


@dataclass(frozen=True)
class Excerpt:
    """Whole lines, unless a line is longer than an excerpt.

    first: number of the first line, from 1. hits: numbers of the lines that contain one of the strings. ends: whether
    the log ends here.
    """

    text: str
    first: int
    hits: frozenset[int]
    ends: bool


class Excerpts:
    """Searches a log for strings. size (bytes), lines: of what has been read so far."""

    def __init__(self, literals: Iterable[str]) -> None:
        self._by_form, self._forms = _searched(frozenset(literals))
        self._longest = max((len(each) for group in self._by_form.values() for each in group), default=0)
        self.size = self.lines = 0

    def of(self, blocks: Iterable[bytes]) -> Iterator[Excerpt]:
        """Yields the excerpts in order; neighbours may overlap, but no line is a hit in both."""
        buffer, number = b"", 1  # of the line that the buffer starts in
        start = 0  # of the part not searched yet
        for added, ends in _zones(blocks):
            self.size += len(added)
            buffer += added
            stop = len(buffer) if ends else max(start, len(buffer) - _AFTER)
            yield from self._in_zone(buffer, start, stop, number, ends)
            dropped = max(0, stop - _BEFORE)
            number += buffer.count(b"\n", 0, dropped)
            buffer, start = buffer[dropped:], stop - dropped
        self.lines = number - 1 + buffer.count(b"\n") + (not buffer.endswith(b"\n") and bool(buffer))

    def _in_zone(self, buffer: bytes, start: int, stop: int, number: int, ends: bool) -> Iterator[Excerpt]:
        hits = self._hits(buffer, start, stop)
        while hits:
            begin = buffer.rfind(b"\n", 0, max(0, hits[0] - _BEFORE)) + 1
            count = 1
            while count < len(hits) and hits[count] - hits[count - 1] < _BEFORE + _AFTER:
                count += 1
            end = buffer.find(b"\n", min(len(buffer), hits[count - 1] + _AFTER))
            end = len(buffer) if end < 0 else end
            first = number + buffer.count(b"\n", 0, begin)
            yield Excerpt(
                buffer[begin:end].decode("utf-8", "replace"),
                first,
                _numbers(buffer, begin, first, hits[:count]),
                ends and end == len(buffer),
            )
            hits = hits[count:]

    def _hits(self, buffer: bytes, start: int, stop: int) -> list[int]:
        """Returns the positions of the strings from `start` to `stop`, one per string and line."""
        positions = set()
        for literal in self._possible(buffer[start : stop + self._longest]):
            at = buffer.find(literal, start, stop + len(literal) - 1)
            while at >= 0:
                positions.add(at)
                line_end = buffer.find(b"\n", at, at + _AFTER)
                at = buffer.find(literal, line_end if line_end >= 0 else at + _AFTER, stop + len(literal) - 1)
        return sorted(positions)

    def _possible(self, text: bytes) -> list[bytes]:
        """Returns the strings that the text may contain: each form of a line is searched once."""
        lines = b"\n".join(set(_form(text).split(b"\n")))
        return [literal for form in self._forms.within(lines) for literal in self._by_form[form]]


@functools.cache  # one set of strings in a process
def _searched(literals: frozenset[str]) -> tuple[Mapping[bytes, list[bytes]], Literals]:
    """Returns the literals by their forms, and what searches for the forms."""
    by_form: dict[bytes, list[bytes]] = {}
    for literal in sorted(each.encode() for each in literals):
        by_form.setdefault(_form(literal), []).append(literal)
    return by_form, Literals(by_form)


def _form(text: bytes) -> bytes:
    return text.translate(_LINE_BREAKS, _DIGITS)


def _numbers(buffer: bytes, begin: int, first: int, hits: list[int]) -> frozenset[int]:
    numbers = set()
    for at in hits:
        first += buffer.count(b"\n", begin, at)
        begin = at
        numbers.add(first)
    return frozenset(numbers)


def _zones(blocks: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Yields the blocks joined to zones, and whether each is the last."""
    zone: list[bytes] = []
    size = 0
    for block in blocks:
        zone.append(block)
        size += len(block)
        if size >= _ZONE:
            yield b"".join(zone), False
            zone, size = [], 0
    yield b"".join(zone), True
