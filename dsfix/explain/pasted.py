"""Short texts as people paste them: with wrapped lines, a chat's or a page's quotes, and marks of Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .lines import Cleaner, Line
from .segments import Segment

LONGEST = 64 << 10  # bytes
_MOST = 400  # lines
_TOGETHER = 4  # lines that a message may be wrapped to
_ENTITIES = {"&quot;": '"', "&#39;": "'", "&lt;": "<", "&gt;": ">", "&nbsp;": " ", "&amp;": "&"}
_SIGNS = str.maketrans(
    "\u2018\u2019\u00b4\u201c\u201d\u00a0\uff1a\uff0c\uff08\uff09", "'''\"\" :,()"
)  # quotes, full-width signs
_MARKS = re.compile(r"[`*]|\\(?=[_'\"\[\](){}<>*`.-])|</?(?:code|pre|b|i|em|strong|br|p)\s*/?>")


def is_readable(pattern: str) -> bool:
    """Whether an expression is for a message: those that span a traceback need its lines."""
    return r"[\s\S]" not in pattern and r"\n" not in pattern.replace(r"[^\n]", "")


def readings(text: str) -> Iterator[Segment]:
    """Yields each line together with those after it, first with its marks, then without them."""
    for sign, plain in _ENTITIES.items():
        text = text.replace(sign, plain)
    text = text.translate(_SIGNS)
    for each in dict.fromkeys([text, _MARKS.sub("", text)]):
        lines = Cleaner().lines(each, 1)
        if len(lines) > _MOST:
            return
        for place, line in enumerate(lines):
            joined = " ".join(" ".join(part.text.strip(" \t|>").split()) for part in lines[place : place + _TOGETHER])
            yield Segment([Line(line.number, line.source, joined, line.stamp)], chained=False)
