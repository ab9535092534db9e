"""Patches of other distributions, which they name in the entry-point group "dsfix.patches"."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import NamedTuple

from ..outcome import error_text

GROUP = "dsfix.patches"
_GROUP_HEADER = b"[dsfix.patches]"


class Plugin(NamedTuple):
    """What one entry point names: a package whose modules are patches, or one module that is a patch.

    distribution: normalized, the first part of its patches' ids. reason: why there is no such module, or "".
    """

    distribution: str
    module: str
    reason: str = ""


def declared() -> Iterator[Plugin]:
    """Every entry point of the group, by distribution; each distribution once, as importlib.metadata finds it."""
    for name, written in sorted({normalized(candidate): candidate for candidate in _candidates()}.items()):
        try:
            # as written: Python 3.9 does not normalize dots
            group_entry_points = metadata.distribution(written).entry_points
        except Exception as error:  # metadata that cannot be read
            yield Plugin(name, "entry_points.txt", error_text(error))
            continue
        for module in sorted({point.value.strip() for point in group_entry_points if point.group == GROUP}):
            is_module = all(part.isidentifier() for part in module.split("."))
            yield Plugin(name, module, "" if is_module else "it is not the name of a module")


def normalized(distribution: str) -> str:
    """A distribution's name, normalized as in PEP 503."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _candidates() -> Iterator[str]:
    """The distributions that declare the group, named as their directories are.

    importlib.metadata.entry_points does the same, but takes three times as long if none does.
    """
    for place in dict.fromkeys(sys.path):
        try:
            names = os.listdir(place or ".")
        except OSError:
            continue
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                try:
                    with open(os.path.join(place, name, "entry_points.txt"), "rb", buffering=0) as file:
                        if _GROUP_HEADER in file.read():
                            yield os.path.splitext(name)[0].partition("-")[0]
                except OSError:
                    continue
