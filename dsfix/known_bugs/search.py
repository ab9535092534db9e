"""`find WORDS`: ranks the known bugs by BM25, as the site's search does.

A word counts by how rare it is among the bugs and by which of a bug's texts contain it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..catalogue.registry import Entry
from .coverage import Bug, PatchCoverage

_TITLE, _KEYS, _WORDS = 4, 2, 1  # weights of a word in these texts
_BM25_K1, _LENGTH = 2, 0.4  # of BM25, k1 and b
_MIN_RELATIVE_SCORE = 0.5  # of the best bug's score

#: Synonyms, mapped to one word.
SYNONYMS = {
    other: word
    for word, others in re.findall(
        r"(\w+): ([^;]+)",
        """gradient: grad; parameter: param; accumulate: accum gas; rate: lr; checkpoint: ckpt; optimizer: optim;
        memory: oom; leak: leakage; hang: stuck deadlock; slow: slower slowdown; wrong: incorrect; fp16: float16;
        bf16: bfloat16; fp32: float32; rotary: rope; evaluate: eval; expert: moe; ulysses: sp; pipeline: pp;
        small: smaller tiny low lower; large: larger big bigger high higher huge; divide: half halved double twice""",
    )
    for other in others.split()
}
#: Stop words.
STOP_WORDS = set(
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
_CAMEL_CASE = re.compile(r"(?<=[a-z]{2})(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]{2})")  # not LoRA, MoE, NaN
_ENDING = re.compile(r"(?<=\w{3})(?:ations?|ing|ions?|ed|es|e|(?<![su])s)$")


def search(query: str, bugs: Sequence[Bug], entries: Mapping[str, Entry]) -> list[Bug]:
    """The bugs that score at least half of what the best one does, the best first, each with its best patch first."""
    pairs: list[tuple[Bug, PatchCoverage | None]] = [(bug, cover) for bug in bugs for cover in bug.covers or (None,)]
    texts = {pair: _term_weights(*pair, entries) for pair in pairs}
    lengths = {pair: sum(text.values()) for pair, text in texts.items()}
    average = sum(lengths.values()) / max(1, len(lengths))
    scores = dict.fromkeys(texts, 0.0)
    for word in set(words(query, names=False)):
        having = {pair: text[word] for pair, text in texts.items() if text[word]}
        rare = math.log(1 + (len(texts) - len(having) + 0.5) / (len(having) + 0.5))
        for pair, worth in having.items():
            long = 1 - _LENGTH + _LENGTH * lengths[pair] / average
            scores[pair] += rare * worth / (worth + _BM25_K1 * long)
    best: dict[Bug, float] = {}
    for (bug, _), score in scores.items():
        best[bug] = max(score, best.get(bug, 0))
    least = _MIN_RELATIVE_SCORE * max(best.values(), default=0)
    ranked = sorted(
        (bug for bug in best if best[bug] > 0 and best[bug] >= least), key=lambda bug: (-best[bug], bug.row.worst)
    )
    return [replace(bug, covers=tuple(sorted(bug.covers, key=lambda cover: -scores[bug, cover]))) for bug in ranked]


def words(text: str, names: bool = True) -> list[str]:
    """Stems without stop words; "GatheredParameters" is its words, and with names "gatheredparameters", too; ZeRO-3,
    "zero 3" and "stage 3" become "zero3"."""
    plain = _ZERO.sub(r" zero\1 zero\2 ", _VERSION.sub(" ", text))
    plain = re.sub(r"\b(?:without zero|no zero|zero off|zero is off)\b", " zero0 ", plain, flags=re.I)
    plain = re.sub(r"\bout[ -]of[ -]memory\b", " memory ", plain, flags=re.I)
    every = re.findall(r"[^\W_]+", plain)
    parts = [part for name in every for part in {*_CAMEL_CASE.split(name), *[name] * names}]
    return [_term(part.lower()) for part in parts if part.lower() not in STOP_WORDS]


def _term(word: str) -> str:
    return _SYNONYM_STEMS.get(word) or _SYNONYM_STEMS.get(_stem(word)) or _stem(word)


def _stem(word: str) -> str:
    """ "accumulation", "accumulated" and "accumulates" have one."""
    if re.search(r"\d", word):
        return word
    return re.sub(r"([dgmnpt])\1$", r"\1", _ENDING.sub("", re.sub("ies$", "y", word)))


_SYNONYM_STEMS = {each: _stem(word) for other, word in SYNONYMS.items() for each in (other, _stem(other))}


def _term_weights(bug: Bug, cover: PatchCoverage | None, entries: Mapping[str, Entry]) -> Counter[str]:
    """Word -> what it is worth in the texts of the bug and of one patch for it, which has a title of its own."""
    row, texts = bug.row, [(_TITLE, bug.row.bug), (_KEYS, f"{bug.row.severity} {bug.row.area}")]
    if cover:
        patch = entries[cover.id].patch
        texts = [(_TITLE, patch.title), (_KEYS, f"{row.severity} {row.area} {cover.id} {row.bug}")]
        texts.append((_WORDS, f"{patch.symptom} {entries[cover.id].docstring}"))
    weights = Counter[str]()
    for worth, text in texts:
        for word in set(words(text)):
            weights[word] += worth
    return weights
