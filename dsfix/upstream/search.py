"""`find WORDS`: ranks the known bugs by BM25, as the site's search does.

A word counts by how rare it is among the bugs and by which of a bug's texts contain it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping

from ..catalogue.registry import Entry
from .coverage import Bug

_TITLE, _KEYS, _WORDS = 4, 2, 1  # weights of a word in these texts
_SATURATED, _LENGTH = 2, 0.4  # of BM25, k1 and b
_LEAST = 0.5  # of the best bug's score

#: Synonyms, mapped to one word.
SAME = {
    other: word
    for word, others in re.findall(
        r"(\w+): ([^;]+)",
        """gradient: grad; parameter: param; accumulate: accum gas; rate: lr; checkpoint: ckpt; optimizer: optim;
        memory: oom; leak: leakage; hang: stuck deadlock; slow: slower slowdown; wrong: incorrect; fp16: float16;
        bf16: bfloat16; fp32: float32; rotary: rope; evaluate: eval; expert: moe; ulysses: sp; pipeline: pp""",
    )
    for other in others.split()
}
#: Stop words.
NOTHING = set(
    re.findall(
        r"\w+",
        """a about across after all also always am an and any are as at be been but by can could do does doing done each
        even for from get gets give gives got had has have having how i if in into is it its itself just like may me
        more most my no not of on one only or other our out over same should since so some still such than that the
        their them then there these they this to too under up use used user uses using value values very was we were
        what when where which while who why will with would you your deepspeed deep speed zero""",
    )
)
_VERSION = re.compile(r"\b\d+\.\d[\w.+]*")
_ZERO = re.compile(r"\b(?:zero|stage|z)[ =_-]*([0-3])(?:(?: ?/ ?| (?:and|or|to) (?:zero)?-?)([0-3]))?\b", re.I)
_ENDING = re.compile(r"(?<=\w{3})(?:ations?|ing|ions?|ed|es|e|(?<![su])s)$")


def search(query: str, bugs: Iterable[Bug], entries: Mapping[str, Entry]) -> list[Bug]:
    """The bugs that score at least half as much as the best one, the best first."""
    texts = {bug: _worth(bug, entries) for bug in bugs}
    lengths = {bug: sum(text.values()) for bug, text in texts.items()}
    average = sum(lengths.values()) / max(1, len(lengths))
    scores = dict.fromkeys(texts, 0.0)
    for word in set(words(query)):
        having = {bug: text[word] for bug, text in texts.items() if text[word]}
        rare = math.log(1 + (len(texts) - len(having) + 0.5) / (len(having) + 0.5))
        for bug, worth in having.items():
            long = 1 - _LENGTH + _LENGTH * lengths[bug] / average
            scores[bug] += rare * worth / (worth + _SATURATED * long)
    best = max(scores.values(), default=0)
    found = [bug for bug, score in scores.items() if score > 0 and score >= _LEAST * best]
    return sorted(found, key=lambda bug: (-scores[bug], bug.row.worst))


def words(text: str) -> list[str]:
    """Stems without stop words; ZeRO-3, "zero 3" and "stage 3" become "zero3"."""
    plain = _ZERO.sub(
        r" zero\1 zero\2 ", _VERSION.sub(" ", re.sub("ZeRO|DeepSpeed", lambda name: name[0].lower(), text))
    )
    plain = re.sub(r"\b(?:without zero|no zero|zero off|zero is off)\b", " zero0 ", plain, flags=re.I)
    plain = re.sub(r"\bout[ -]of[ -]memory\b", " memory ", plain, flags=re.I)
    found = re.findall(r"[^\W_]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", plain).lower())
    return [
        _SAME_STEMS.get(each) or _SAME_STEMS.get(_stem(each)) or _stem(each) for each in found if each not in NOTHING
    ]


def _stem(word: str) -> str:
    """ "accumulation", "accumulated" and "accumulates" have one."""
    if re.search(r"\d", word):
        return word
    return re.sub(r"([dgmnpt])\1$", r"\1", _ENDING.sub("", re.sub("ies$", "y", word)))


_SAME_STEMS = {each: _stem(word) for other, word in SAME.items() for each in (other, _stem(other))}


def _worth(bug: Bug, entries: Mapping[str, Entry]) -> Counter[str]:
    """Word -> its weight in the bug's texts."""
    own, row = [entries[cover.id] for cover in bug.covers], bug.row
    stories = (f"{each.patch.symptom} {each.docstring}" for each in own)
    found = Counter[str]()
    for worth, texts in (
        (_TITLE, [row.bug, *(each.patch.title for each in own)]),
        (_KEYS, [row.severity, row.area, *(each.id for each in own)]),
        (_WORDS, stories),
    ):
        for word in set(words(" ".join(texts))):
            found[word] += worth
    return found
