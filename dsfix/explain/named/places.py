"""Where a text names options, functions and classes: in its title, its tracebacks' last frames, sentences, code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from ..boxes import unboxed
from ..closest import prose
from ..frames import frame, short
from ..lines import Cleaner

TITLE, FRAME, SENTENCE, CODE = 4.0, 3.0, 2.0, 1.0
"""How much a place tells of what the text is about."""

_LAST = 6  # frames
_TELLING = 10  # characters of a function's name
_WORD = re.compile(r"[A-Za-z_][\w.-]*(?<![.-])", re.ASCII)
# what is set is not what the text is about: lines of a config, of a command, of a log
_SET = re.compile(
    r"""\s*(?:[{}\[\]"']|--?\w|[\w.-]+\s*(?::\s|=\s(?![\w.]+\())|\[?\d|.*\\$|.*\[(?:INFO|DEBUG|WARNING)\])|.*\s--\w"""
)
# printed in every job, or a list of files
_PRINTED = re.compile(r"\s*[│├└]|.*\(overridable by")
_COMMAND = re.compile(r".*\.(?:py|sh)\s+(?:\S+\s+)*--\w|.*\\$")


def of(text: str) -> dict[str, float]:
    """Returns what the text names, as `key` writes it -> the weight of its best place."""
    found: dict[str, float] = {}
    for name, weight in _all(text):
        found[name] = max(weight, found.get(name, 0.0))
    return found


def weight(name: str, there: Mapping[str, float]) -> float:
    """Returns the weight of a fact's name in what `of` found, 0 if it is not there. Of a path the file is enough
    where the function's name tells the package."""
    whole = key(name)
    last = whole.rpartition("/")[2]
    function = last.rpartition(":")[2]
    return there.get(whole) or (there.get(last, 0.0) if len(function) >= _TELLING and last != whole else 0.0)


def without(names: Iterable[str], sentence: str) -> str:
    """Returns the sentence with other words than these names, whatever stands before their dots."""
    forms = "|".join(re.escape(key(name)).replace("_", "[-_]") for name in names)
    return re.sub(rf"(?i)(?:[\w-]+\.)*\b(?:{forms})\b", " ", sentence)


def key(name: str) -> str:
    """Returns how a name is compared."""
    return name.lower().replace("-", "_")


def _all(text: str) -> Iterator[tuple[str, float]]:
    title, *others = [*prose.sentences(text)] or [""]
    for name in _names(title):
        yield name, TITLE
    for sentence in others:
        if not (_COMMAND.match(sentence) or _PRINTED.match(sentence)):
            for name in _names(sentence):
                yield name, SENTENCE
    called = [found for line in unboxed(Cleaner().lines(text, 1)) if (found := frame(line.text))]
    for distance, (path, function) in enumerate(reversed(called[-_LAST:])):
        yield key(f"{short(path)}:{function}"), FRAME - distance / _LAST
    for line in text.splitlines():
        if not (_SET.match(line) or _PRINTED.match(line)) and not frame(line):
            for name in _names(line):
                yield name, CODE


def _names(text: str) -> Iterator[str]:
    """Yields each identifier alone, and together with the one before it."""
    for word in _WORD.findall(text):
        parts = key(word).split(".")
        yield from parts
        yield from (f"{one}.{other}" for one, other in zip(parts, parts[1:]))
