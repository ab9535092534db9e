"""What a fact declares: of which option, function or class it is, and what its users have to know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Fact:
    """One thing to know.

    names: how texts write it, each alone being enough: an identifier that no sentence has by chance
        ("partition_activations"; "-" reads like "_", and capitals do not matter), one with the name before it
        ("zero.Init"), or a frame of a traceback, from the package on ("deepspeed/runtime/zero/stage3.py:step").
    title: one line, without a full stop. what, remedy: sentences, true of whoever uses it.
    beside: names of the vocabulary (`closest/vocabulary.py`), as in "loading + adapter"; one of these has to be in the
        text's sentences, too. Without any, the name alone is enough, unless it stands in a line of code.
    affects: PEP 440 specifiers per distribution; a text that names other versions is not told.
    patches: ids of the patches that change it.
    evidence: links, or where in the source it is.
    """

    id: str
    names: tuple[str, ...]
    title: str
    what: str
    remedy: str
    beside: tuple[str, ...] = ()
    affects: Mapping[str, str] = field(default_factory=dict)
    patches: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
