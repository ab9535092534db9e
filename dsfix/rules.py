"""Rules of `check` and `doctor`: what each detects, which releases it applies to, and the remedy.

A family is a module of functions under `@error`, `@warning` or `@note`, or of tuples of rules; a package of such
modules is a registry, like dsfix.patches.
"""

from __future__ import annotations

import enum
import functools
import importlib
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Callable

from .outcome import error_text
from .versions import satisfies


class Level(enum.Enum):
    ERROR = "error"  # the job does not start, or computes something other than requested
    WARNING = "warning"  # probably not intended
    NOTE = "note"  # worth knowing


@dataclass(frozen=True)
class Match:
    """One match of a rule: `where` is a config key or a part of the environment, `what` one sentence."""

    where: str
    what: str


RuleFunction = Callable[[Any], Iterable[Match]]


@dataclass(frozen=True)
class Rule:
    """One kind of problem. `find` takes the facts that the command has collected and yields the matches.

    `affects`: PEP 440 specifiers by distribution, as for a patch. `evidence`: "#1" of DeepSpeed, "owner/repository#1",
    other links, or what was run. `patches`: ids of related patches.
    """

    id: str
    level: Level
    remedy: str
    find: RuleFunction
    affects: Mapping[str, str] = field(default_factory=dict)
    evidence: tuple[str, ...] = ()
    patches: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """One match of a rule, as reported."""

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


def _rule(level: Level, remedy: str, *evidence: str, **fields: Any) -> Callable[[RuleFunction], Rule]:
    """Makes a rule of the function below it, whose name is the id; fields: `affects`, `patches`."""
    return lambda find: Rule(find.__name__, level, remedy, find, evidence=evidence, **fields)


error, warning, note = (functools.partial(_rule, level) for level in Level)


@functools.cache
def load(package: str) -> tuple[Rule, ...]:
    """Returns the rules of all modules of a package, in the order of the modules' names."""
    names = sorted(info.name for info in pkgutil.iter_modules(importlib.import_module(package).__path__))
    modules = [importlib.import_module(f"{package}.{name}") for name in names]
    return tuple(rule for module in modules for value in vars(module).values() for rule in _rules_in(value))


def _rules_in(value: object) -> Iterator[Rule]:
    for each in value if isinstance(value, tuple) else (value,):
        if isinstance(each, Rule):
            yield each


def all_in_range(affects: Mapping[str, str], versions: Mapping[str, str | None]) -> bool:
    """Returns whether every distribution is in its range; a missing or invalid version is not."""
    return all(satisfies(specifiers, versions.get(name) or "") for name, specifiers in affects.items())


def findings(rules: Iterable[Rule], facts: Any, versions: Mapping[str, str | None]) -> list[Finding]:
    """Returns the findings of the rules, worst first; a rule that raises becomes a note."""
    findings = []
    for rule in rules:
        if all_in_range(rule.affects, versions):
            try:
                matches = list(rule.find(facts))
            except Exception as error:
                what = f"this rule could not be evaluated: {error_text(error)}"
                findings.append(Finding(rule.id, Level.NOTE, "", what, "report this bug of dsfix"))
            else:
                ends = rule.remedy, rule.patches
                findings += [Finding(rule.id, rule.level, match.where, match.what, *ends) for match in matches]
    return sorted(findings, key=lambda finding: list(Level).index(finding.level))
