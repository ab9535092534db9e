"""Rules about the operating system."""

from __future__ import annotations

from collections.abc import Iterator

from ...rules import Found, Level, Rule
from ..facts import EnvironmentFacts


def _pinned_memory(facts: EnvironmentFacts) -> Iterator[Found]:
    if facts.platform.wsl == 2 and facts.accelerators.present:
        yield Found(
            "platform",
            "this is WSL 2, which limits pinned memory: offload with pin_memory fails with "
            "`CUDA error: out of memory` although memory is free",
        )


RULES = (
    Rule(
        id="wsl2_pinned_memory",
        level=Level.NOTE,
        remedy='set "pin_memory": false in offload_optimizer and offload_param, or give WSL more memory in .wslconfig',
        find=_pinned_memory,
        evidence=(
            "https://github.com/deepspeedai/DeepSpeed/issues/2977",
            "https://github.com/microsoft/WSL/issues/8447",
        ),
    ),
)
