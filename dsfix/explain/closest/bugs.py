"""The known bugs of DeepSpeed as texts to search: the table's, and those that only patches know."""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from packaging.version import Version

from ...catalogue import registry
from ...upstream import coverage, table
from ...upstream.coverage import Bug
from .words import plain, words

# severity -> names of the vocabulary: a report of such a bug has one of the first and none of the second. Crashes are
# left to the signatures: what tells one from another is their message.
_STOPPED = frozenset({"hang", "slow", "oom", "installing", "building", "importing"})
_REPORTS = {
    "hang": (frozenset({"hang"}), frozenset()),
    "performance": (frozenset({"slow"}), frozenset()),
    "leak": (frozenset({"oom", "memory", "grows", "host"}), frozenset()),
    "wrong-result": (frozenset(), _STOPPED),
}
# a bug of one of these is met only where it is used
_SCENES = frozenset(
    (
        *("accumulation", "adagrad", "adapter", "autotuning", "checkpoint", "compile", "cpu", "curriculum"),
        *("dataanalyzer", "diffusers", "embedding", "evaluation", "experts", "fastgen", "frozen", "generation"),
        *("hpz", "hybrid engine", "inference", "kernels", "lamb", "learning rate", "lion", "mics", "muon", "npu"),
        *("nvme", "offload", "pipeline", "profiler", "quantized", "sequence parallel", "several models"),
        *("superoffload", "tensor parallel", "universal", "windows", "xpu", "zenflow", "zero to fp32"),
        *("bert", "bloom", "falcon", "gemma", "gptj", "llama", "mistral", "opt", "phi", "qwen"),  # models
    )
)
# what any report may say
_USUAL = frozenset(
    (
        *("fails", "wrong", "results", "how", "abnormal", "lower", "excess", "later", "ineffective", "baseline"),
        *("model", "training", "several gpus", "more gpus", "weights file", "single gpu", "metric", "prepared"),
        *("epoch", "validation", "data loader"),
    )
)
_ASIDE = re.compile(r"[;(]")  # what follows may be about other jobs
_ZERO = frozenset({"zero-1", "zero-2", "zero-3"})


@dataclass(frozen=True)
class Near:
    """A bug, the words that it shares with a text, most telling first, and how close that makes it: their weight times
    their part of the weight of all its words, more for what more users meet."""

    bug: Bug
    shared: tuple[str, ...]
    closeness: float


@dataclass(frozen=True)
class _Known:
    bug: Bug
    words: frozenset[str]
    scenes: frozenset[str]


@functools.cache
def _known() -> tuple[_Known, ...]:
    found = [bug for bug in coverage.bugs(table.load(), registry.catalogue()) if bug.row.severity in _REPORTS]
    return tuple(
        _Known(bug, words(plain(bug.row.bug)) - _USUAL, words(plain(_ASIDE.split(bug.row.bug)[0])) & _SCENES)
        for bug in found
    )


@functools.cache
def _weights() -> dict[str, float]:
    """word -> how much it tells: the fewer bugs have it, the more."""
    counts = Counter(word for known in _known() for word in known.words)
    return {word: math.log(len(_known()) / count) for word, count in counts.items()}


def near(text: frozenset[str], releases: Sequence[Version]) -> list[Near]:
    """Returns the bugs that a text with these words may report, the closest first; none that the releases it names do
    not have. That one of them has the bug tells as much as a word that as few bugs have as there are releases with it.
    """
    weights, found = _weights(), []
    for known in _known():
        complaints, others = _REPORTS[known.bug.row.severity]
        if (complaints and not complaints & text) or others & text or known.scenes - text:
            continue
        if known.words & _ZERO and text & _ZERO and not known.words & text & _ZERO:
            continue
        if releases and not any(_has(known.bug, each) for each in releases):
            continue
        shared = sorted(known.words & text, key=lambda word: (-weights[word], word))
        weight, whole = (sum(weights[word] for word in some) for some in (shared, known.words))
        if told := [f"DeepSpeed {each}" for each in releases if known.bug.row.has(each)]:
            weight, whole = weight + _of_release(known.bug), whole + _of_release(known.bug)
        likely = 1 + (known.bug.row.weight - 3) / 16  # what more users meet
        found.append(Near(known.bug, (*shared, *told[:1]), likely * weight * weight / whole))
    return sorted(found, key=lambda each: -each.closeness)


def _has(bug: Bug, release: Version) -> bool:
    """Whether a release has the bug; of those before the table's first it is not known."""
    earliest = table.load().releases[0]
    return bug.row.first == earliest if release < earliest else bug.row.has(release)


def _of_release(bug: Bug) -> float:
    releases = table.load().releases
    return math.log(len(releases) / len(bug.affected(releases)))
