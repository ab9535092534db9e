"""What a part is: a property of one public part of DeepSpeed, with its reference. Imports no torch."""

from __future__ import annotations

import hashlib
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsfix.lab.session import Lab
    from matrix.parts.drawing import Draw

OTHER = ": another rank"  # ends what a rank has to say of an example that only another one fails
Check = Callable[["Lab", "Draw"], None]


class Absent(Exception):
    """The release, or this machine, does not have the part; the message says why."""


@dataclass(frozen=True)
class Part:
    """check: raises for an example that does not agree with `reference`; None where there is no reference.

    examples: how many are generated, at most as many as there is time for. ranks, device: as of a patch.
    """

    name: str
    reference: str
    check: Check | None = None
    examples: int = 100
    ranks: int = 1
    device: str = "cpu"

    @property
    def area(self) -> str:
        return self.name.partition("/")[0]


_PARTS: dict[str, Part] = {}


def part(name: str, reference: str, **options: Any) -> Callable[[Check], Check]:
    """Declares the function below it as the check of a part."""

    def declare(check: Check) -> Check:
        _PARTS[name] = Part(name, reference, check, **options)
        return check

    return declare


def without_reference(reasons: Mapping[str, str]) -> None:
    """Declares parts that nothing can be compared with: name -> why."""
    for name, why in reasons.items():
        _PARTS[name] = Part(name, why)


def public(name: str) -> Any:
    """What the installed DeepSpeed has under "module:attribute". Raises Absent."""
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(f"deepspeed.{module}".rstrip(".")), attribute)
    except (ImportError, AttributeError) as error:
        raise Absent(f"{type(error).__name__}: {error}") from None


def load(*areas: str) -> Mapping[str, Part]:
    """The parts, by name, in the order of their files. Imports torch."""
    package = importlib.import_module("matrix.parts.areas")
    for each in pkgutil.iter_modules(package.__path__):
        if not areas or each.name in areas:
            importlib.import_module(f"matrix.parts.areas.{each.name}")
    return {name: each for name, each in _PARTS.items() if not areas or each.area in areas}


def digest(area: str) -> str:
    """Of the file that the area's parts are declared in: another one makes their record stale."""
    return hashlib.sha256((Path(__file__).parent / "areas" / f"{area}.py").read_bytes()).hexdigest()[:6]
