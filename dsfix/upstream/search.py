"""`find WORDS`: the known bugs that are about some words, the best first.

A bug has three texts: its titles, the messages that show it, and the stories of its patches. A word counts by how rare
it is among the bugs, times the weight of the best text that has it.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterable, Mapping

from ..catalogue.registry import Entry
from .coverage import Bug

_WEIGHTS = (4, 2, 1)  # of a title, a message, a story
_LEAST = 0.5  # of what the best bug scores
_STAGE = re.compile(r"\b(?:zero|stage)[ _-]*([0-3])\b")
_ENDING = re.compile(r"(?<=\w{4})(?:ings?|ions?|ed|es|e|(?<!s)s)$")
_SAME = {"oom": "out of memory", "stuck": "hangs", "deadlock": "hangs", "lr": "learning rate"}


def search(query: str, bugs: Iterable[Bug], entries: Mapping[str, Entry]) -> list[Bug]:
    """The bugs that score at least half of what the best one does, the best first."""
    texts = {bug: tuple(map(_words, _texts(bug, entries))) for bug in bugs}
    scores = dict.fromkeys(texts, 0.0)
    for word in _words(" ".join(_SAME.get(each, each) for each in query.lower().split())):
        stem = _ENDING.sub("", word)
        weights = {bug: max(w * _has(text, stem) for w, text in zip(_WEIGHTS, each)) for bug, each in texts.items()}
        having = sum(map(bool, weights.values()))
        for bug, weight in weights.items():
            scores[bug] += weight * math.log(len(texts) / having) if weight else 0
    best = max(scores.values(), default=0)
    found = [bug for bug, score in scores.items() if score > 0 and score >= _LEAST * best]
    return sorted(found, key=lambda bug: (-scores[bug], bug.row.worst))


def _texts(bug: Bug, entries: Mapping[str, Entry]) -> tuple[str, str, str]:
    own = [entries[cover.id] for cover in bug.covers]
    titles = [bug.row.bug, bug.row.severity, bug.row.area, *(f"{each.id} {each.patch.title}" for each in own)]
    stories = (inspect.cleandoc(each.docstring) for each in own)
    return " ".join(titles), " ".join(each.patch.symptom for each in own), " ".join(stories)


def _words(text: str) -> set[str]:
    """In lower case; ZeRO-3, "zero 3" and "stage 3" are the word "zero3"."""
    plain = _STAGE.sub(r" zero\1 ", text.lower().replace("_", " "))
    return set(re.findall(r"[^\W_]+", plain))


def _has(words: set[str], stem: str) -> bool:
    return stem in words or (len(stem) > 3 and any(word.startswith(stem) for word in words))
