"""bf16 + ZeRO-3: the optimizer steps on inf or nan gradients, regardless of `bf16.check_grad_overflow`.

Why: `bf16.check_grad_overflow` (added in 0.17.1; on by default since 0.19.3) promises that a step with non-finite
    gradients is skipped. ZeRO-1 and ZeRO-2 skip it; ZeRO-3 checks its gradients only with fp16. After one such
    gradient, of one micro-batch, parameters and optimizer state stay nan. Nothing fails.
How: where the setting is on, the gradient norm, which each step computes anyway and which is -1 where a gradient is not
    finite, is computed first and read by the host: the step is skipped on all ranks, as with fp16: it counts in
    `skipped_steps`, the gradients are dropped and the learning rate schedule does not advance. The 1st, 10th, 100th …
    skipped step is logged as a warning. ZenFlow and SuperOffload, which step differently, are unchanged.
Changes: where the setting is on (the default since 0.19.3), a step with an inf or nan gradient is skipped; all others
    are bit-identical. Without optimizer offload the host waits for the norm, as in 0.19.8. A checkpoint written without
    the patch is either sound or contains nan, and then cannot be repaired.
Workaround: Scripts check each loss on all ranks, and skip the backward pass and the step if one is not finite.
    You can keep it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.job import Job
    from dsfix.lab import Lab

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
_OPTIMIZER = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3"


def is_finite(norms: Sequence[Any]) -> bool:
    """Whether the parameter groups' norms are finite, the same on all ranks; waits for the device."""
    import torch

    from dsfix.log import warn_repeatedly

    finite = not bool((torch.stack(list(norms)) < 0).any())
    if not finite:
        took_effect(__name__, "a step with an inf or nan gradient was skipped (unpatched: made)")
        what = "bf16 + ZeRO-3: a gradient is inf or nan, the step is skipped"
        warn_repeatedly(
            what,
            "zero3_bf16_nonfinite_step: a gradient is inf or nan, so the step was skipped. If this continues, the "
            "model is not training",
        )
    return finite


def _meets(job: Job) -> bool:
    settings = job.block("bf16") or job.block("bfloat16")
    checked = settings.get("check_grad_overflow", job.release >= Version("0.19.3"))
    return job.stage == 3 and job.may_be("bf16") and str(checked).lower() not in ("false", "0")


PATCH = Patch(
    title="bf16 + ZeRO-3: bf16.check_grad_overflow is ignored; the optimizer steps on inf or nan gradients",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.17.1,<0.19.8"},
    changes=(
        Edit(
            f"{_OPTIMIZER}._overflow_check_and_loss_scale_update",
            after="if self.dtype == torch.float16:\n    self.check_overflow()",
            code="if getattr(self, '_dsfix_check_bf16', False):\n"
            f"    from {__name__} import is_finite\n"
            "    self._dsfix_norms = self._get_norm_groups()\n"
            "    self.overflow = not is_finite(self._dsfix_norms)",
        ),
        Edit(
            f"{_OPTIMIZER}.step",
            replace="norm_groups = self._get_norm_groups()",
            code="norm_groups = vars(self).pop('_dsfix_norms', None) or self._get_norm_groups()",
        ),
        Edit(
            f"{_ENGINE}._configure_optimizer",
            after="self.optimizer = self._configure_zero_optimizer(basic_optimizer)",
            # only ZeRO-3 reads it, MiCS included
            code="self.optimizer._dsfix_check_bf16 = (\n"
            "    self.bfloat16_enabled() and self._config.bfloat16_config.check_grad_overflow\n"
            "    and not getattr(self.optimizer, 'zenflow', False)\n"
            "    and not hasattr(self.optimizer, 'superoffload_cpu_optimizer'))",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/6976": "introduced in 0.17.1",
        "https://github.com/deepspeedai/DeepSpeed/pull/8035": "related: the setting is on by default since 0.19.3",
    },
    fixed_in="0.19.8",
    present=(
        Source(
            f"{_ENGINE}._configure_zero_optimizer",
            "check_grad_overflow = self._config.bfloat16_config.check_grad_overflow",
        ),
    ),
    fixed=(Source(f"{_OPTIMIZER}.step", "is_invalid_grad_norm(scaled_global_grad_norm)"),),
    config=_meets,
)

_LEARNING_RATE = 0.1
_SOUND_STEPS = 3
_BROKEN = 1  # number of sound steps before the step with non-finite targets


def reproduce(lab: Lab) -> str:
    torch, deepspeed = lab.torch, lab.deepspeed
    if importlib.util.find_spec("deepspeed.runtime.precision_config") is None:
        raise CannotTell(f"DeepSpeed {deepspeed.__version__} has no bf16.check_grad_overflow")

    def trained(batches: list[Any]) -> tuple[dict[str, Any], int]:
        model = lab.models.MLP()
        config = {
            "train_micro_batch_size_per_gpu": len(batches[0][0]),
            "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
            "bf16": {"enabled": True, "check_grad_overflow": True},
            "zero_optimization": {"stage": 3},
        }
        engine = lab.initialize(model, config, model_parameters=model.parameters())
        for inputs, targets in batches:
            outputs = engine(inputs.to(lab.device, torch.bfloat16)).float()
            engine.backward(torch.nn.functional.mse_loss(outputs, targets.to(lab.device)))
            engine.step()
        return lab.parameters(engine), engine.skipped_steps

    sound = [lab.models.regression_batch(rank=0, step=step) for step in range(_SOUND_STEPS)]
    broken = (sound[0][0], torch.full_like(sound[0][1], float("inf")))
    expected, _ = trained(sound)
    parameters, skipped = trained([*sound[:_BROKEN], broken, *sound[_BROKEN:]])
    lost = sum(not tensor.isfinite().all() for tensor in parameters.values())
    if lost and not skipped:
        raise BugPresent(f"after one non-finite gradient {lost} of {len(parameters)} parameters are nan")
    assert skipped == 1, f"{skipped} steps were skipped"
    difference = lab.reference.largest_difference(parameters, expected)
    assert difference.absolute == 0, f"{difference} from the run without the skipped step"
    return "the step is skipped: the parameters are bit-identical to those of the run without it"
