"""Rules of `check` and `doctor`: what is looked for, in which releases it is a mistake, and what to do about it.

A rule family is one module with a tuple `RULES`; a package of such modules is a registry, as dsfix.patches is one.
"""

from __future__ import annotations

import enum
import functools
import importlib
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Callable

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version


class Level(enum.Enum):
    ERROR = "error"  # the job will not start, or computes something else than asked for
    WARNING = "warning"  # likely not what was meant
    NOTE = "note"  # worth knowing


@dataclass(frozen=True)
class Found:
    """One place where a rule holds: `where` is a config key or a part of the environment, `what` one sentence."""

    where: str
    what: str


@dataclass(frozen=True)
class Rule:
    """One mistake. `find` gets the facts that its command has collected and yields the places.

    `affects` gates it as a patch is gated: PEP 440 specifiers by distribution. `evidence`: links, or what was run.
    `patches`: ids of the patches that bear on it.
    """

    id: str
    level: Level
    remedy: str
    find: Callable[[Any], Iterable[Found]]
    affects: Mapping[str, str] = field(default_factory=dict)
    evidence: tuple[str, ...] = ()
    patches: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """What one rule found in one place."""

    rule: str
    level: Level
    where: str
    what: str
    remedy: str
    patches: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "rule": self.rule,
            "level": self.level.value,
            "where": self.where,
            "what": self.what,
            "remedy": self.remedy,
            "patches": list(self.patches),
        }


@functools.cache
def load(package: str) -> tuple[Rule, ...]:
    """The rules of all modules of a package, in the order of the modules' names."""
    return tuple(declared(package, "RULES"))


def declared(package: str, name: str) -> Iterator[Any]:
    """What the tuples of that name hold, module by module of a package."""
    path = importlib.import_module(package).__path__
    for module in sorted(info.name for info in pkgutil.iter_modules(path)):
        yield from getattr(importlib.import_module(f"{package}.{module}"), name)


def fits(affects: Mapping[str, str], versions: Mapping[str, str | None]) -> bool:
    """Whether every distribution that is named is inside its range; one that is absent or unreadable is not."""
    return all(_inside(specifiers, versions.get(name)) for name, specifiers in affects.items())


def _inside(specifiers: str, version: str | None) -> bool:
    try:
        return SpecifierSet(specifiers).contains(Version(version or "").public, prereleases=True)
    except InvalidVersion:
        return False


def findings(rules: Iterable[Rule], facts: Any, versions: Mapping[str, str | None]) -> list[Finding]:
    """What the rules find, the worst first; a rule that fails on these facts says so and costs the others nothing."""
    found = []
    for rule in rules:
        if fits(rule.affects, versions):
            try:
                places = list(rule.find(facts))
            except Exception as error:
                what = f"this rule could not be evaluated: {type(error).__name__}: {error}"
                found.append(Finding(rule.id, Level.NOTE, "", what, "report it"))
            else:
                found += [
                    Finding(rule.id, rule.level, each.where, each.what, rule.remedy, rule.patches) for each in places
                ]
    return sorted(found, key=lambda finding: list(Level).index(finding.level))
