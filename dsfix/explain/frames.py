"""Where an error was raised that no signature matches, by the frames of its traceback."""

from __future__ import annotations

import re

from .lines import Line, frame
from .segments import Segment

_OURS = re.compile(r".*[/\\](?=deepspeed[/\\]\w+(?:[/\\]|\.py$))")
_ELSEWHERE = re.compile(r".*(?:site|dist)-packages[/\\]|.*[/\\]")


def told(segment: Segment, raised: Line) -> str:
    """Returns the function that raised the error, and the last one of DeepSpeed; "" if no frame is there."""
    frames = [found for line in segment.lines if line.number <= raised.number if (found := frame(line.text))]
    if not frames:
        return ""
    ours = [each for each in frames if _OURS.match(each[0])]
    if not ours:
        hint = "DeepSpeed is not in the traceback; a run without its config tells whether it has a part in it"
        return f"{_named(*frames[-1])}. {hint}."
    called = f", called from {_named(*ours[-1])}" if ours[-1] != frames[-1] else ""
    return f"{_named(*frames[-1])}{called}."


def _named(path: str, function: str) -> str:
    """Shows a path from the package on, or the name of a file that is in none."""
    found = _OURS.match(path) or _ELSEWHERE.match(path)
    return f"{path[found.end() if found else 0 :]}, in {function}".replace("\\", "/")
