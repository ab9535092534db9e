"""What is recorded of a training for the comparison, step by step. Importing this imports torch."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass
class Step:
    """One optimizer step; tensors are on the CPU, whole (not partitioned) and keyed by the model's names.

    loss: mean over the global batch. norm: of the global gradient before clipping, as DeepSpeed reports it, or None.
    gradients: as passed to the optimizer: unscaled, averaged and clipped. learning_rates: of this step, by parameter
    group. parameters: after the step; the optimizer's fp32 weights, if it has any. state: of the optimizer after the
    step: parameter -> "exp_avg" etc. skipped: no step because of inf or nan. weights: the model's, after the step, in
    its dtype. scale: the loss scale after the step, or None. counters: the engine's global_steps and skipped_steps
    after the step. torn: "gradients", "norm" etc. on which the ranks disagree -> the names. An element that no rank
    holds is nan.
    """

    loss: float
    norm: float | None
    gradients: dict[str, torch.Tensor]
    learning_rates: list[float]
    parameters: dict[str, torch.Tensor]
    state: dict[str, dict[str, torch.Tensor]]
    skipped: bool = False
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    scale: float | None = None
    torn: dict[str, list[str]] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)


@dataclass
class Record:
    """One training and the trainings that continued from its checkpoints.

    start: the state before the first step; its loss, norm and gradients are meaningless. steps: the uninterrupted
    training. loaded: phase ("resume", "universal") -> the state after the load; resumed: -> the steps after it.
    exports: phase ("zero_to_fp32", "16bit") -> the parameters exported after half of the steps. unseen: what this
    DeepSpeed does not expose -> why. errors: phase, or "training" -> the traceback that ended it.
    """

    start: Step | None = None
    steps: list[Step] = field(default_factory=list)
    loaded: dict[str, Step] = field(default_factory=dict)
    resumed: dict[str, list[Step]] = field(default_factory=dict)
    exports: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    unseen: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
