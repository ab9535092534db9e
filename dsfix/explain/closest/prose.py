"""The sentences of a pasted text: what its writer says, without logs, code, commands and tracebacks."""

from __future__ import annotations

import re
from collections.abc import Iterator

_MOST = 12  # sentences
_TAGS = re.compile(r"^(?:[#*>\s]*)(?:\[[^\]\n]{1,20}\][\s:\uff1a]*)*")
_ENDS = re.compile(r"[\n\u3002\uff01\uff1f!?\uff1b;]|\.(?=\s|$)")
_NO_TITLE = re.compile(r"\s*(?:File \"|Traceback)")
_NO_SENTENCE = re.compile(
    r"""\ {4}|\t|\s*(?:File\ "|Traceback|\[\d|\[rank|[{}|│╭╰├└❱"$%]|>>>|--?\w|import\s
        |from\ \S+\ import\ |def\ |class\ |@|```|!\[
        |\w+\ ?\.{3,}|\[[A-Z]+\]|std(?:out|err):|[a-z]\w*_\w*:\s|(?:export\ )?[A-Z]\w*=
        |\w[\w.]*\s*=\s|[-*]\ ?`?[\w ]+`?\ ?(?:version)?:|\d+%|\d{4}[-/]\d\d|\d\d:\d\d:\d\d|</?\w)""",
    re.X,
)


def sentences(text: str) -> Iterator[str]:
    """Yields the title, which is the first line or what follows its tags, and then the sentences."""
    found = 0
    for line in text.splitlines():
        line = _TAGS.sub("", line, count=1) if not found else line
        if (_NO_SENTENCE if found else _NO_TITLE).match(line):
            continue
        for part in _ENDS.split(line) if found else [line]:
            if any(sign.isalpha() for sign in part):
                yield part.strip()
                found += 1
                if found == _MOST:
                    return
