"""What every disagreement in the records is, where no patch of the catalogue cures it. Written by hand."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from packaging.specifiers import SpecifierSet

from sweep.records import Class


class Kind(enum.Enum):
    """What a disagreement is."""

    MEANING = "DeepSpeed's meaning"  # documented, or refused with a sentence
    DIAGNOSIS = "diagnosis"  # a fault that no patch can cure
    OPEN = "open"  # a fault that has no patch yet


@dataclass(frozen=True)
class Explanation:
    """Explains the classes of `releases` that need one of each of `levels` and show nothing but what is said here.

    levels: factor -> levels. phase, what: as in a Difference, any where empty. detail: a regular expression that is
    found in the error. links: documentation, source or issues.
    """

    id: str
    kind: Kind
    text: str
    releases: str = ""
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    phase: str = ""
    what: tuple[str, ...] = ()
    detail: str = ""
    links: tuple[str, ...] = ()

    def explains(self, found: Class, release: str) -> bool:
        return (
            SpecifierSet(self.releases).contains(release)
            and all(found.minimal.get(name) in levels for name, levels in self.levels.items())
            and all(
                self.phase in ("", each.phase)
                and (not self.what or each.what in self.what)
                and re.search(self.detail, each.detail) is not None
                for each in found.shown
            )
        )


EXPLANATIONS: tuple[Explanation, ...] = ()
