"""A scenario: a typical training script that runs with DeepSpeed's engine and in plain PyTorch."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from matrix.bystanders import fingerprint

if TYPE_CHECKING:
    from matrix.bystanders.job import Batch as Batch
    from matrix.bystanders.job import Job as Job
else:
    Batch = Job = Any  # they import torch, which a list of the scenarios does not need

Levels = Mapping[str, str]


@dataclass(frozen=True)
class Scenario:
    """One function of a module in scenarios/, whose name is the scenario's.

    title: what the script does, one line. only: factor -> the levels it is run with; all levels of factors not named.
    pinned: settings to run in addition to those that the space assigns, as differences from the plain one.
    reference: whether plain PyTorch is the reference; otherwise the jobs with and without dsfix have to agree.
    works_around: the patches whose bug the script already works around, as people do today.
    release: the only release that it is run on, for a script that others cannot run.
    """

    title: str
    run: Callable[[Job], None]
    only: Mapping[str, Sequence[str]] = field(default_factory=dict)
    pinned: Sequence[Levels] = ()
    reference: bool = True
    works_around: Sequence[str] = ()
    release: str = ""

    @property
    def name(self) -> str:
        return self.run.__name__

    @property
    def family(self) -> str:
        return self.run.__module__.rpartition(".")[2]

    def fingerprint(self) -> str:
        return fingerprint.of(self.run.__module__, self.run.__name__, self.reference)


Script = Callable[[Job], None]
_FIELDS = ("pinned", "reference", "works_around", "release")
_known: dict[str, Scenario] = {}
_given: dict[Script, Mapping[str, Any]] = {}


def scenario(title: str, **given: Any) -> Callable[[Script], Script]:
    """Register the decorated function as a scenario. given: fields of Scenario, and factor -> levels.

    Raises ValueError for a duplicate name.
    """

    def register(run: Script) -> Script:
        if run.__name__ in _known:
            raise ValueError(f"duplicate scenario {run.__name__}")
        only = {**given, **_given.pop(run, {})}
        fields = {name: only.pop(name) for name in _FIELDS if name in only}
        _known[run.__name__] = Scenario(title, run, only, **fields)
        return run

    return register


def settings(**given: Any) -> Callable[[Script], Script]:
    """More arguments of `scenario`, on a line below it."""

    def keep(run: Script) -> Script:
        _given[run] = given
        return run

    return keep


@functools.cache
def load() -> Mapping[str, Scenario]:
    """All scenarios by name. Does not import torch."""
    package = importlib.import_module("matrix.bystanders.scenarios")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return dict(sorted(_known.items()))
