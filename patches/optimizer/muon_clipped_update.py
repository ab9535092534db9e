"""Muon with ZeRO-1/2 and gradient clipping: the orthogonalized update is clipped instead of the gradient.

Why: ZeRO computes Muon's update as soon as a step's gradients are reduced; their norm is taken, and they are clipped,
    later. The update has a norm of its own, which grows with the model and not with the gradient: with
    `gradient_clipping`, 1.0 by default from 0.19.3 on, each step of Muon is divided by it, and Adam's gradients are,
    too. The learning rate in effect is a fraction of the configured one.
How: where a job clips, the update is computed in the step, from the clipped gradient, as PyTorch does it. In fp16
    before 0.19.8, where the update is divided by the loss scale, that is over, too. Optimizer offload is unchanged.
Changes: jobs that clip: steps of Muon have the size that the learning rate says, often ten times what it was, and
    `get_global_grad_norm()` is the gradient's. A learning rate that was tuned with the bug is too high. Checkpoints can
    be resumed.
Workaround: The config sets `"gradient_clipping": 0`. That can stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import Patch, Severity, Source

from . import _muon_clipping as muon

if TYPE_CHECKING:
    from dsfix.lab import Lab

PATCH = Patch(
    title="Muon + ZeRO-1/2 + gradient clipping: the update is clipped, not the gradient",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.17.6,<0.19.7"},
    changes=(*muon.put_off("get_flat_partition"), muon.STEP),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7509": "introduced in 0.17.6",
        "https://github.com/deepspeedai/DeepSpeed/issues/8439": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/7776": "proposed fix",
    },
    # since 0.19.7 another function does it
    present=(
        Source(
            f"{muon.OPTIMIZER}.get_flat_partition",
            'self.optimizer.state[flatten_copy]["momentum_buffer"] = self.flatten(flatten_bf_list)',
        ),
    ),
    config=muon.clips,
    continued_by="muon_clipped_update_from_0_19_7",
)


def reproduce(lab: Lab) -> str:
    return muon.clipped(lab)
