"""DeepSpeed's `clip_grad_norm_` with a norm_type other than 2 clips by a wrong norm.

Why: the tensors' norms are squared before they are summed, whatever the norm, and the root of order norm_type is taken
    of the sum: correct for 2 only. With the 1-norm, gradients are clipped by the sum of the squares of the norms.
How: the norms are raised to norm_type, as through 0.13.1. With the 2-norm, the only one that an engine uses, nothing
    changes.
Changes: jobs that call `deepspeed.runtime.utils.clip_grad_norm_` themselves with a norm_type other than 2 and infinity.
    A checkpoint written without the patch can be resumed.
Workaround: Scripts clip by `torch.nn.utils.clip_grad_norm_`. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_CLIP = "deepspeed.runtime.utils:clip_grad_norm_"

PATCH = Patch(
    title="DeepSpeed's clip_grad_norm_ with a norm_type other than 2 clips by a wrong norm",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.13.2,<0.19.7"},
    changes=(
        Edit(
            _CLIP,
            replace="torch.stack(all_norms).square()",
            code="torch.stack(all_norms).pow(norm_type)",
            effect=RAN,  # whether the norm exceeds the limit
            when="norm_type != 2",
        ),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/8313": "fixed in 0.19.7"},
    fixed_in="0.19.7",
    fixed=(Source(_CLIP, "torch.stack(all_norms).pow(norm_type)"),),
)

_LEARNING_RATE, _STEPS, _CLIP_AT, _ORDER = 0.1, 3, 0.2, 3.0


def reproduce(lab: Lab) -> str:
    torch, models = lab.torch, lab.models
    batches = [models.regression_batch(rank=0, step=step) for step in range(_STEPS)]

    def trained(norm_of: Any) -> dict[str, Any]:
        """Plain PyTorch, whose gradients are clipped by `norm_of` the norms of its tensors."""
        model = models.MLP()
        parameters = list(model.parameters())
        for batch in batches:
            gradients = torch.autograd.grad(model.loss(*batch), parameters)
            norm = norm_of(torch.stack([gradient.norm(_ORDER) for gradient in gradients]))
            assert norm > 1.5 * _CLIP_AT, norm
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients):
                    parameter -= _LEARNING_RATE * gradient * _CLIP_AT / norm
        return dict(model.named_parameters())

    right = trained(lambda norms: norms.norm(_ORDER))
    wrong = trained(lambda norms: norms.square().sum() ** (1 / _ORDER))

    model = models.MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    from deepspeed.runtime.utils import clip_grad_norm_

    for inputs, targets in batches:
        engine.backward(torch.nn.functional.mse_loss(engine(inputs.to(lab.device)), targets.to(lab.device)))
        clip_grad_norm_(engine.module.parameters(), _CLIP_AT, norm_type=_ORDER)
        engine.step()
    return lab.reference.compare(
        lab.parameters(engine), right, {"those of the norms' squares": wrong}, after=f"after {_STEPS} steps"
    )
