"""Modules whose classes inherit all that they do. Importing this imports torch."""

from __future__ import annotations

import torch
from torch import nn

_CLASSES = 8  # for a bug that depends on the order of a set: only one of their 40320 orders would not show it


class Scaled(nn.Module):  # type: ignore[misc,unused-ignore]
    """Float [n, 4], times a parameter of four numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight

    def check(self) -> None:
        """That its output is right."""
        seen, right = self(torch.ones(1, 4)), torch.linspace(-1, 1, 4).view(1, 4)
        assert torch.equal(seen, right), f"{type(self).__name__}: expected {right}, got {seen}"


def classes() -> list[type[Scaled]]:
    """That class and eight more, each of which inherits from the one before it."""
    found = [Scaled]
    for number in range(_CLASSES):
        found.append(type(f"Scaled{number}", (found[-1],), {}))  # type: ignore[arg-type]
    return found
