"""Lines of a log without the prefixes of launchers, each with the process it came from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_LONGEST = 16_384  # characters; longer lines are split
_OVERLAP = 1024  # characters that neighbouring pieces share, so that no message is cut
_MOST_PREFIXES = 5

TRACEBACK = "Traceback (most recent call last)"
_OF_TRACEBACK = (TRACEBACK, 'File "')
_TIME = r"\d\d:\d\d:\d\d(?:[.,]\d+)?"
_PREFIX = re.compile(
    rf"\[?(?P<stamp>\d{{4}}-\d\d-\d\d[T ]{_TIME})(?:Z|[+-]\d\d:?\d\d)?\]?(?: std(?:out|err) [FP])?:?(?: |$)"
    rf"|[A-Z][a-z]{{2}} [ \d]\d {_TIME} [\w.-]+ [\w./-]+(?:\[\d+\])?: "  # journald
    rf"|[IWEF]\d{{4}} {_TIME} \d+ [\w./-]+:\d+\](?: (?! ))?"  # torch's own log
    r"|\[(?:rank|default|trainer|worker)(?P<rank>\d+)\]:(?: (?! ))?"  # torch, torchrun --tee with its usual roles
    r"|\[\d+,(?P<task>\d+)\]<std(?:out|err)>:"  # mpirun --tag-output
    r"|\((?P<actor>\w+ pid=\d+(?:, ip=[\d.]+)?)\) "  # Ray
    r"|\[pod/(?P<pod>[^\]]+)\] "  # kubectl logs --prefix
)
_FRAME = re.compile(r'\s*(?:File "([^"\n]+)", line \d+, in|(\S+\.py):\d+ in) (\S+)')  # Python's, or rich's
_STARTS = frozenset("[(0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ")  # of _PREFIX
# pdsh, srun --label, docker compose: only a prefix of traceback lines is certain not to be a message
_HOST = re.compile(r"(?P<prefix>(?P<host>[\w.-]{1,64})(?::|\s*\|))(?: (?! ))?")
_NO_HOST = re.compile(r"(?i)error|exception|warning|info|debug|critical|fatal")


def frame(line: str) -> tuple[str, str] | None:
    """Returns the path and the function of a frame's line in a traceback."""
    match = _FRAME.match(line)
    return (match[1] or match[2], match[3]) if match else None


class Line(NamedTuple):
    """number: from 1; source: the process, as far as the line names it, else ""; stamp: the last time seen, this line
    included.
    """

    number: int
    source: str
    text: str
    stamp: str


class Cleaner:
    """Removes the prefixes in one file; learns host names from the prefixes of its tracebacks."""

    def __init__(self) -> None:
        self._hosts: dict[str, str] = {}  # prefix -> host
        self._stamp = ""

    def lines(self, text: str, first: int) -> list[Line]:
        """Returns the lines of an excerpt whose first line has the number `first`."""
        raw = [(number, piece) for number, line in enumerate(text.split("\n"), first) for piece in _pieces(line)]
        if any(part in text for part in _OF_TRACEBACK):
            for _, each in raw:
                if each[0] not in " \t" and any(part in each for part in _OF_TRACEBACK):
                    self._learn(each)
        return [self._line(number, each) for number, each in raw]

    def _learn(self, text: str) -> None:
        at, host = 0, None
        for _ in range(_MOST_PREFIXES):
            if match := _PREFIX.match(text, at):
                at = match.end()
            elif not host and (host := _HOST.match(text, at)) and not _NO_HOST.search(host["host"]):
                at = host.end()
            else:
                break
        if host and text[at:].lstrip().startswith(_OF_TRACEBACK):
            self._hosts[host["prefix"]] = host["host"]

    def _line(self, number: int, text: str) -> Line:
        at = 0
        source: list[str] = []
        for _ in range(_MOST_PREFIXES):
            if match := text[at : at + 1] in _STARTS and _PREFIX.match(text, at):
                self._stamp = (match["stamp"] or self._stamp).replace("T", " ")
                source += filter(None, match.group("rank", "task", "actor", "pod"))
            elif self._hosts and (match := _HOST.match(text, at)) and match["prefix"] in self._hosts:
                source.append(self._hosts[match["prefix"]])
            else:
                break
            at = match.end()
        return Line(number, "/".join(dict.fromkeys(source)) if source else "", text[at:], self._stamp)


def _pieces(line: str) -> Iterator[str]:
    """Yields what a terminal would show in turn: a progress bar rewrites its line. Long lines are split."""
    for part in line.split("\r"):
        if len(part) <= _LONGEST:
            if part:
                yield part
        else:
            for start in range(0, len(part), _LONGEST - _OVERLAP):
                yield part[start : start + _LONGEST]
