"""The words of a text: a thing of the vocabulary under one name, whatever it is called; other words as they are."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

from .symptoms import SYMPTOMS
from .vocabulary import DOMAIN, FEATURES, OF_THE_FIELD

_CHINESE = re.compile(r"([\u4e00-\u9fff]+)")
_STAGES = re.compile(r"(?i)zero[-_ ]?(?:stages? ?)?([0-3])(?:(?:/|, ?| and | or )[0-3])*( to [0-3])?(?![\d.])")
_START = r"(?:(?<![a-z0-9])|(?<=\bnon))"
_ANYWHERE = r"|\S*"  # what follows it in the vocabulary
_PLAIN = re.compile(r"(?<![\w.-])[a-z][a-z0-9.+-]{2,}(?<![.+-])")
_SPOKEN_NOT = re.compile(r"\b(do|does|did|is|are|was|could|would|should)nt\b")  # without the apostrophe
_ENDINGS = re.compile(r"(?<=[a-z]{4})(?:s|ed|ing)$")
# too common in this field to tell one problem from another
_COMMON = frozenset(
    (
        *("the", "and", "for", "with", "that", "this", "are", "was", "not", "but", "from", "have", "has", "when"),
        *("where", "what", "why", "how", "can", "does", "did", "its", "all", "any", "you", "your", "use", "using"),
        *("used", "uses", "there", "their", "then", "than", "them", "they", "will", "would", "should", "could"),
        *("been", "being", "which", "while", "into", "about", "only", "same", "some", "such", "other", "get"),
        *("got", "gets", "getting", "very", "more", "most", "much", "many", "also", "after", "before", "during"),
        *("without", "under", "bug", "help", "please", "question", "request", "issue", "issues", "deepspeed"),
        *("speed", "deep", "model", "models", "training", "train", "trained", "gpu", "gpus", "script", "code"),
        *("example", "run", "running", "runs", "case", "first", "second", "new", "version", "latest", "set"),
        *("setting", "config", "user", "users", "time", "try", "tried", "trying", "instead", "make", "made", "one"),
        *("key", "value", "transformer", "two", "way", "work", "works", "working", "seem", "seems", "like", "want"),
        *("need", "error", "errors"),
    )
)


def _pattern(forms: str) -> re.Pattern[str]:
    """Chinese has no blanks between words: what is in it may begin anywhere."""
    latin, _, chinese = forms.partition(_ANYWHERE)
    return re.compile(f"{_START}(?:{latin})" + (f"|{chinese}" if chinese else ""))


@functools.cache
def _names() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((name, _pattern(forms)) for name, forms in {**SYMPTOMS, **FEATURES}.items())


@functools.cache
def _domain() -> re.Pattern[str]:
    return _pattern(DOMAIN)


def _stages(found: re.Match[str]) -> Iterator[int]:
    """Yields the stages of "ZeRO-1/2" or "ZeRO-1 to 3"."""
    numbers = [int(number) for number in re.findall(r"[0-3]", found.group())]
    yield from range(numbers[0], numbers[1] + 1) if found[2] else numbers


def plain(text: str) -> str:
    """Returns the text as the vocabulary's expressions read it."""
    text = _STAGES.sub(lambda found: " ".join(f"zero-{stage}" for stage in _stages(found)), text)
    text = text.lower().replace("_", " ").replace("`", "").replace("\u2019", "'")
    text = text.replace("can't", "cannot").replace("won't", "will not").replace("n't", " not")
    text = _SPOKEN_NOT.sub(r"\1 not", text)
    return " ".join(_CHINESE.sub(r" \1 ", text).split())


def named(text: str) -> frozenset[str]:
    """Returns the names of the vocabulary that occur in a plain text."""
    return frozenset(name for name, pattern in _names() if pattern.search(text))


def words(text: str) -> frozenset[str]:
    """Returns the names of the vocabulary in a plain text, and its other words."""
    rest = text
    for _, pattern in _names():
        rest = pattern.sub(" ", rest)
    return named(text) | {_ENDINGS.sub("", word) for word in _PLAIN.findall(rest) if word not in _COMMON}


def is_of_the_field(text: str) -> bool:
    """Whether a plain text is about training or running models at all."""
    return bool(_domain().search(text) or OF_THE_FIELD & named(text))
