"""Draws the examples of a check with hypothesis, the same on each rank, and keeps the simplest that fails."""

from __future__ import annotations

import datetime
import functools
import os
import re
from collections.abc import Sequence
from typing import Any, TypeVar

import hypothesis
import torch
from hypothesis import strategies
from hypothesis.errors import HypothesisException, UnsatisfiedAssumption
from torch import distributed

from dsfix.lab.session import Lab
from matrix.parts.part import OTHER, Absent, Part

_SECONDS, _LEAST = 60.0, 5  # for the examples of one part, and how many it has at least
_SHRINKING = 200, 20.0  # examples that are tried after the first that fails, and seconds
_PATIENCE = 100.0  # for a rank that does not come to the end of an example
Value = TypeVar("Value")


class Draw:
    """Called with a name and a strategy, or the values to choose from: draws a value."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self.drawn: dict[str, Any] = {}

    def __call__(self, name: str, values: strategies.SearchStrategy[Value] | Sequence[Value]) -> Value:
        strategy = values if isinstance(values, strategies.SearchStrategy) else strategies.sampled_from(values)
        value: Value = self._data.draw(strategy)
        self.drawn[name] = value
        return value

    def number(self, name: str, low: float, high: float) -> float:
        """A number with few digits."""
        share: int = self._data.draw(strategies.integers(0, 100))
        self.drawn[name] = round(low + (high - low) * share / 100, 6)
        return low + (high - low) * share / 100

    def integer(self, name: str, low: int, high: int) -> int:
        value: int = self(name, strategies.integers(low, high))
        return value

    def flag(self, name: str) -> bool:
        return self(name, (False, True))

    def subset(self, values: Sequence[Value]) -> list[Value]:
        """At most six of the values."""
        strategy = strategies.lists(strategies.sampled_from(values), max_size=6, unique=True)
        found: list[Value] = self._data.draw(strategy)
        return found

    def tensor(self, name: str, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Normally distributed, of any layout."""
        layout: str = self(f"{name} is", ("contiguous", "transposed", "strided", "expanded"))
        return laid_out(shape, layout, dtype, self.integer(f"seed of {name}", 0, 3))

    def assume(self, holds: bool) -> None:
        """Another example unless `holds`."""
        hypothesis.assume(holds)

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.drawn.items())


def laid_out(shape: Sequence[int], layout: str, dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if layout == "expanded" and shape:
        return torch.randn((1, *shape[1:]), generator=generator).to(dtype).expand(*shape)
    if layout == "strided" and shape:
        return torch.randn((*shape[:-1], 2 * shape[-1]), generator=generator).to(dtype)[..., ::2]
    if layout == "transposed" and shape:
        return torch.randn(tuple(reversed(shape)), generator=generator).to(dtype).permute(*reversed(range(len(shape))))
    return torch.randn(tuple(shape), generator=generator).to(dtype)


def _clock() -> float:
    """Seconds of the processors, of this process and of its children: another load gives the same examples."""
    return sum(os.times()[:4])


def run(each: Part, lab: Lab, shrink: bool = True) -> tuple[str, int, str]:
    """What the examples of a part show on this release: (agrees, differs or absent, how many, what was seen)."""
    check = each.check
    assert check is not None
    failures: list[str] = []
    count, later, over, end = 0, 0, False, _clock() + _SECONDS
    group = _own_group() if each.ranks > 1 else None

    def one(data: Any) -> None:
        nonlocal count, later, over, end
        if failures and not later:
            end = min(end, _clock() + _SHRINKING[1])
        later += bool(failures)
        slow = _clock() > end and (count >= _LEAST or bool(failures))
        over = _any(slow or later > _SHRINKING[0], group)
        if over:
            return
        draw, seen, error = Draw(data), "", None
        try:
            torch.manual_seed(0)
            check(lab, draw)
            count += 1
        except (UnsatisfiedAssumption, Absent, KeyboardInterrupt):
            raise
        except Exception as raised:
            if isinstance(raised, HypothesisException):
                raise
            seen, error = f"{draw}: {_sentence(raised)}", raised
        if seen:
            failures.append(seen)  # first: the other ranks may not come to the end of the example
        if group is not None and isinstance(error, RuntimeError) and "onnection" in seen:
            raise error  # by a rank that has ended
        if _any(bool(seen), group):
            if not seen:
                failures.append(f"{draw}{OTHER}")
            raise AssertionError("differs")  # the same on each rank, so that all shrink alike

    options = hypothesis.settings(
        max_examples=each.examples,
        derandomize=True,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=(hypothesis.Phase.generate, *((hypothesis.Phase.shrink,) if shrink else ())),
    )
    try:
        options(hypothesis.given(strategies.data())(one))()
    except Absent as reason:
        return "absent", 0, str(reason)
    except BaseException as error:
        if not failures and not over:  # else hypothesis complains that examples draw nothing any more
            if isinstance(error, KeyboardInterrupt):
                raise
            failures.append(_sentence(error))
    if failures:
        return "differs", count, next((text for text in reversed(failures) if not text.endswith(OTHER)), failures[-1])
    return "agrees", count, ""


@functools.cache
def _own_group() -> Any:
    return distributed.new_group(backend="gloo", timeout=datetime.timedelta(seconds=_PATIENCE))


def _any(flag: bool, group: Any) -> bool:
    """Whether it holds on any rank."""
    if group is None:
        return flag
    value = torch.tensor(int(flag))
    distributed.all_reduce(value, distributed.ReduceOp.MAX, group=group)
    return bool(value)


def _sentence(error: BaseException) -> str:
    name = "" if type(error) is AssertionError and str(error) else f"{type(error).__name__}: "
    return re.sub(r"\s+", " ", f"{name}{error}").strip()[:240]
