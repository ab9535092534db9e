"""What one rank saw, and the result of one comparison of DeepSpeed with PyTorch. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class RankObservations:
    """What one rank saw, as written to its file. start, steps: Parts; the others as in Record and AuditVerdict."""

    start: Any = None
    steps: list[Any] = field(default_factory=list)
    exports: dict[str, dict[str, Any]] = field(default_factory=dict)
    not_compared: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    patches: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    device: str = ""
    failed: str = ""


@dataclass(frozen=True)
class Difference:
    """A quantity that DeepSpeed computes differently, and the first step where it does.

    phase: "training" or one of plan.PHASES. what: "loss", "norm", "gradients", "parameters", "learning rates", "state
    exp_avg" etc., "weights" (those the model computes with, compared with the parameters), "loss scale", "skipped" or
    "error"; prefixed by "initial " before the first step. step: from 0. names: the parameters, most different first;
    may be empty. got, wanted: the number; for tensors the norm of the first. off: relative difference; bound: how much
    rounding explains. detail: a further sentence, or the error's last line.
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
class AuditVerdict:
    """differences: in order of appearance; none means agreement within rounding.

    comparisons: number of compared numbers and tensors. not_compared: what, and why. patches: ids of the patches that
    were applied. versions: distribution -> version. device: as Lab.device_name. failed: why nothing could be
    compared (timeout, ranks that crashed without a message), else "". errors: the ranks' tracebacks.
    """

    differences: tuple[Difference, ...] = ()
    comparisons: int = 0
    not_compared: Mapping[str, str] = field(default_factory=dict)
    patches: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    device: str = ""
    seconds: float = 0.0
    failed: str = ""
    errors: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        return not self.differences and not self.failed
