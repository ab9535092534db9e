"""Tracebacks that rich has drawn in a box, with the message below it wrapped to the box's width."""

from __future__ import annotations

from dataclasses import dataclass

from .lines import TRACEBACK, Line

_TOP, _SIDE, _BOTTOM = ("╭", "+-"), ("│", "|"), ("╰", "+-")


@dataclass
class _Message:
    """limit: the width of its box; place: index of its line; length: of its last wrapped line."""

    limit: int
    place: int = 0
    length: int = 0

    def continues(self, text: str) -> bool:
        """Whether `text` continues the message: a line is wrapped if the next word does not fit."""
        return self.length > 0 and self.length + 1 + len(text.split(" ", 1)[0]) > self.limit


def unboxed(lines: list[Line]) -> list[Line]:
    """Returns the lines with a box's frames indented as in a plain traceback, and its message on one line."""
    if not any(_is_top(line.text) for line in lines):
        return lines
    result: list[Line] = []
    width: dict[str, int] = {}  # process -> the width of its open box
    messages: dict[str, _Message] = {}  # process -> the message below its box
    for line in lines:
        source, text = line.source, line.text
        message = messages.get(source)
        if _is_top(text):
            width[source] = len(text)
        elif source in width and text.startswith(_SIDE):
            line = line._replace(text=f" {text.strip('│|')}")
        elif source in width and text.startswith(_BOTTOM):
            line = line._replace(text=" ")
            messages[source] = _Message(width.pop(source))
        elif message and not message.length:
            message.place, message.length = len(result), len(text.rstrip())
        elif message and message.continues(text):
            begun = result[message.place]
            result[message.place] = begun._replace(text=f"{begun.text.rstrip()} {text}")
            message.length = len(text.rstrip())
            continue
        else:
            messages.pop(source, None)
        result.append(line)
    return result


def _is_top(text: str) -> bool:
    return TRACEBACK in text and text.startswith(_TOP)
