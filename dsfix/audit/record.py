"""What a training leaves to be compared, step by step. Importing this imports torch."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass
class Step:
    """One optimizer step; tensors are on the CPU, whole (not this rank's partition), and in the model's names.

    loss: mean over the global batch. norm: of the whole gradient before clipping, as DeepSpeed reports it; None where
    it reports none. gradients: what the optimizer was given: unscaled, averaged and clipped. learning_rates: by
    parameter group, those of this step. parameters: after the step: the optimizer's fp32 weights, where it has any.
    state: of the optimizer, after the step: parameter -> "exp_avg" and the like. skipped: inf or nan, no step made.
    weights: what the model computes with after the step, in its own dtype. scale: the loss scale after the step, None
    where there is none. counters: the engine's global_steps and skipped_steps after the step. torn: "gradients", "norm"
    and the like of which the ranks hold different values -> the names. An element that no rank holds is nan.
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
    """One training and what followed from its checkpoints.

    start: what is held before the first step; its loss, norm and gradients say nothing. steps: the uninterrupted
    training. loaded: phase ("resume", "universal") -> what is held after the load; resumed: -> the steps after it.
    exports: phase ("zero_to_fp32", "16bit") -> the parameters that it gave at half of the steps.
    unseen: what this DeepSpeed gives no access to -> why, in a sentence. errors: phase, or "training" -> the traceback
    of what ended it.
    """

    start: Step | None = None
    steps: list[Step] = field(default_factory=list)
    loaded: dict[str, Step] = field(default_factory=dict)
    resumed: dict[str, list[Step]] = field(default_factory=dict)
    exports: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    unseen: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
