"""Muon with ZeRO-3, or with optimizer offload, in 0.19.8: the update is clipped instead of the gradient.

Why: 0.19.8 computes Muon's update in the step, and takes the norm over it; muon_clipped_update describes what that does
    to the learning rate. Until then offload does not compute it at all, and ZeRO-3 does in each micro-batch.
How: where a job clips, the update is computed after the norm, from the clipped gradient.
Changes: as those of muon_clipped_update.
Workaround: The config sets `"gradient_clipping": 0`. That can stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, Edit, Patch, Severity, Source

from . import _muon_clipping as muon

if TYPE_CHECKING:
    from dsfix.job import Job
    from dsfix.lab import Lab

_STEP_3 = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3.step"
_STEP = f"{muon.OPTIMIZER}.step"


def offloaded(optimizer: Any, norm: Any) -> None:
    """Muon's updates of clipped gradients, multiplied by what they are about to be divided by."""
    scale = float(optimizer.loss_scale)
    divided = max((float(norm) / scale + 1e-6) / optimizer.clip_grad, 1.0) * scale
    before = optimizer.custom_loss_scaler, optimizer.external_loss_scale
    optimizer.custom_loss_scaler, optimizer.external_loss_scale = True, divided
    try:
        optimizer._apply_muon_updates_cpu_offload()
    finally:
        optimizer.custom_loss_scaler, optimizer.external_loss_scale = before


def orthogonalize(optimizer: Any, norm: Any) -> bool:
    """Muon's updates of clipped gradients in ZeRO-3; whether they are not to be clipped."""
    if not optimizer.use_muon or not optimizer.clip_grad:
        return False
    if optimizer.offload_optimizer:
        offloaded(optimizer, norm)
        return False
    clip = ((norm / optimizer.loss_scale + 1e-6) / optimizer.clip_grad).clamp(min=1.0)
    for uses_muon, group in zip(optimizer.sub_groups_using_muon, range(len(optimizer.fp16_groups))):
        for gradient in optimizer.averaged_gradients[group] if uses_muon else ():
            gradient.div_(clip)
    optimizer._apply_muon_to_accumulated_grads()
    return True


def _clips(job: Job) -> bool:
    offload = job.stage in (1, 2) and job.offloads_optimizer
    return job.optimizer == "muon" and (offload or job.stage == 3) and bool(job.get("gradient_clipping", default=1.0))


PATCH = Patch(
    title="Muon + ZeRO-3 or optimizer offload + gradient clipping: the update is clipped, not the gradient",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.19.8"},
    changes=(
        Edit(
            _STEP,
            replace="if self.cpu_offload:\n    self._apply_muon_updates_cpu_offload()",
            code="if self.cpu_offload and not self.clip_grad:\n    self._apply_muon_updates_cpu_offload()",
        ),
        Edit(
            _STEP,
            after="if scaled_global_grad_norm is not None:\n    ...",
            effect=RAN,
            when="self.cpu_offload and self.clip_grad and 'muon' in self.optimizer.__class__.__name__.lower()",
            code="if self.cpu_offload and self.clip_grad:\n    offloaded(self, scaled_global_grad_norm)",
            uses=(offloaded,),
        ),
        Edit(
            _STEP_3,
            replace="self._apply_muon_to_accumulated_grads()",
            code="""
if self.use_muon and self.clip_grad:
    self.sub_groups_lacking_loss_scale.clear()  # those of the step before
else:
    self._apply_muon_to_accumulated_grads()
""",
        ),
        Edit(
            _STEP_3,
            after="self._global_grad_norm = scaled_global_grad_norm / self.loss_scale",
            effect=RAN,
            when="self.use_muon and self.clip_grad",
            code="muon_clipped = orthogonalize(self, scaled_global_grad_norm)",
            uses=(orthogonalize,),
        ),
        Edit(
            _STEP_3,
            replace="self.unscale_and_clip_grads(sub_group_id, scaled_global_grad_norm)",
            code="""
self.unscale_and_clip_grads(
    sub_group_id, scaled_global_grad_norm * (not (muon_clipped and self.sub_groups_using_muon[sub_group_id]))
)
""",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/8439": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/8464": "introduced with optimizer offload",
    },
    present=(
        Source(_STEP, "self._apply_muon_updates_cpu_offload()"),
        Source(_STEP_3, "self._apply_muon_to_accumulated_grads()"),
    ),
    config=_clips,
)


def reproduce(lab: Lab) -> str:
    muon.clipped(lab, stage=2, offload=True)
    return muon.clipped(lab, stage=3)
