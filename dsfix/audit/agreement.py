"""What one comparison of DeepSpeed with PyTorch found. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Difference:
    """Something that DeepSpeed computes otherwise, from the first step at which it does.

    phase: "training" or one of plan.PHASES. what: "loss", "norm", "gradients", "parameters", "learning rates", "state
    exp_avg" and the like, "weights" (what the model computes with, against the parameters), "still parameters"
    (elements that Lion should not move), "loss scale", "skipped" or "error"; with "initial " before it what is so
    before the first step. step: from 0. names: the parameters, most different first; empty for what has none. got,
    wanted: the number, for tensors the norm of the first. off: relative difference; bound: what rounding explains.
    detail: a sentence more, or the error's last line.
    """

    phase: str
    what: str
    step: int
    names: tuple[str, ...]
    got: float
    wanted: float
    off: float
    bound: float
    detail: str = ""


@dataclass(frozen=True)
class Verdict:
    """differences: in the order in which they arise; none means agreement within rounding.

    comparisons: numbers and tensors that were compared. unseen: what could not be compared -> why. patches: dsfix's
    patch ids that were applied in the ranks. versions: distribution -> version. device: as Lab.device_name. failed: the
    sentence that says why there is no comparison at all (timeout, ranks that died without a word), else "".
    """

    differences: tuple[Difference, ...] = ()
    comparisons: int = 0
    unseen: Mapping[str, str] = field(default_factory=dict)
    patches: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    device: str = ""
    seconds: float = 0.0
    failed: str = ""

    @property
    def agrees(self) -> bool:
        return not self.differences and not self.failed
