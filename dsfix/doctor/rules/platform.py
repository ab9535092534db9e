"""Rules about the operating system."""

from __future__ import annotations

from collections.abc import Iterator

from ...rules import Match, error, note
from ..facts import EnvironmentFacts


@error(
    "convert the distribution in Windows: `wsl --set-version NAME 2`",
    "https://docs.nvidia.com/cuda/archive/12.2.2/wsl-user-guide/index.html",
)
def wsl1_has_no_gpu(facts: EnvironmentFacts) -> Iterator[Match]:
    if facts.platform.wsl == 1:
        yield Match("platform", "this is WSL 1, which does not support GPUs")


@note(
    'set "pin_memory": false in offload_optimizer and offload_param, or give WSL more memory in .wslconfig',
    "#2977",
    "microsoft/WSL#8447",
)
def wsl2_pinned_memory(facts: EnvironmentFacts) -> Iterator[Match]:
    if facts.platform.wsl == 2 and facts.accelerators.present:
        yield Match(
            "platform",
            "this is WSL 2, which limits pinned memory: offload with pin_memory fails with "
            "`CUDA error: out of memory` although memory is free",
        )
