"""Gradient clipping in fp32 without ZeRO fails with a scalar parameter.

Why: since 0.13.2 the factor by which gradients are clipped is a tensor of one dimension, which does not fit in place
    into the gradient of a parameter without dimensions (CLIP's `logit_scale`, a temperature, a gate): "output with
    shape [] doesn't match the broadcast shape [1]". Through 0.13.1 it was a number.
How: such a gradient is multiplied as a tensor of one dimension. Others are multiplied as before.
Workaround: Scripts clip by `torch.nn.utils.clip_grad_norm_`, without `gradient_clipping` in the config.
    You can keep it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_CLIP = "deepspeed.runtime.utils:clip_grad_norm_"
_MULTIPLIED = "p.grad.data.mul_(clip_coef)"

PATCH = Patch(
    title="fp32 without ZeRO + gradient_clipping + scalar parameter: output with shape [] doesn't match",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.13.2"},
    changes=(
        Edit(
            _CLIP,
            replace=_MULTIPLIED,
            code="(p.grad.data if p.grad.dim() else p.grad.data.view(1)).mul_(clip_coef)",
            effect="the gradient of a scalar parameter was clipped (unpatched: RuntimeError)",
            when="p.grad.dim() == 0",
        ),
    ),
    symptom=r"in clip_grad_norm_\n[\s\S]*RuntimeError: output with shape \[\] doesn't match",
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/4915": "introduced in 0.13.2"},
    present=(Source(_CLIP, "scaled_norm_tensor = scaled_norm"),),  # a tensor, not a number
)

_LEARNING_RATE, _STEPS, _CLIP_AT = 0.1, 3, 0.1


def reproduce(lab: Lab) -> str:
    torch = lab.torch

    class Model(lab.models.MLP):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(2.0))

        def forward(self, x: Any) -> Any:
            return super().forward(x) * self.scale

    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(_STEPS)]
    model = Model()
    right = lab.reference.train(
        model, [[batch] for batch in batches], model.loss, "SGD", lr=_LEARNING_RATE, clip=_CLIP_AT
    )
    assert min(right.gradient_norms) > _CLIP_AT
    model = Model()
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "gradient_clipping": _CLIP_AT,
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    try:
        for inputs, targets in batches:
            engine.backward(torch.nn.functional.mse_loss(engine(inputs.to(lab.device)), targets.to(lab.device)))
            engine.step()
    except RuntimeError as error:
        if re.search(r"output with shape \[\]", str(error)):
            raise BugPresent(str(error)) from error
        raise
    return lab.reference.compare(lab.parameters(engine), right.parameters, after=f"after {_STEPS} steps")
