"""fp16 without ZeRO, MoE: the norm for clipping uses the experts' weights instead of their gradients.

Why: FP16_Optimizer passes the experts' fp32 weights, not their gradients, to the function that computes the norm. With
    a large loss scale the experts' part is negligible, with a small one far too large: the reported norm is wrong, and
    steps are clipped too little or too much. Nothing fails.
How: it passes the gradients, as in 0.19.8 and later. The collectives are the same.
Changes: jobs in fp16 without ZeRO, with experts and a fused Adam, and those in bf16 for which newer releases use the
    same optimizer: the reported gradient norm and, with gradient_clipping, the steps whose norm exceeds the limit. A
    checkpoint written without the patch can be resumed.
Workaround: Scripts leave `gradient_clipping` out of the config and clip by hand before `engine.step()`.
    You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_STEP = "deepspeed.runtime.fp16.fused_optimizer:FP16_Optimizer.step"
_APPEND = "expert_grads_for_norm[param_group['name']].append"

PATCH = Patch(
    title="fp16 without ZeRO + MoE: the clipping norm uses the experts' weights instead of their gradients",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.14.1,<0.19.8"},
    changes=(
        Edit(
            _STEP,
            replace=f"{_APPEND}(self.fp32_groups_flat[i])",
            code=f"{_APPEND}(grads_groups_flat[i])",
            effect=RAN,  # whether the norm exceeds the limit
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/5259": "introduced in 0.14.1",
    },
    fixed_in="0.19.8",
    fixed=(Source(_STEP, f"{_APPEND}(grads_groups_flat[i])"),),
    ranks=2,
    config=lambda job: job.experts is True and job.stage == 0 and job.may_be("fp16"),
)

_LEARNING_RATE, _STEPS, _CLIP_AT, _LOSS_SCALE = 1.0, 2, 0.2, 4


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    torch, models, reference = lab.torch, lab.models, lab.reference
    from .. import _half as half
    from ._experts import Mixture, Sharded

    steps = [[models.regression_batch(rank, step) for rank in range(2)] for step in range(_STEPS)]
    adam = {"lr": _LEARNING_RATE, "eps": 1.0}  # so that the size of the gradients matters

    def trained(norm_of_weights: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        """Parameters and gradient norms of plain PyTorch, clipped by the norm of all gradients or by the wrong one."""
        model = Mixture()
        optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0, **adam)
        norms = {}
        for number, step in enumerate(steps):
            optimizer.zero_grad()
            torch.stack([model.loss(*batch) for batch in step]).mean().backward()
            parts: list[Any] = [
                parameter.detach() / _LOSS_SCALE if norm_of_weights and name.startswith("experts.") else parameter.grad
                for name, parameter in model.named_parameters()
            ]
            norm = torch.stack([part.norm() for part in parts]).norm()
            assert norm > 1.5 * _CLIP_AT, norm
            for parameter in model.parameters():
                parameter.grad *= _CLIP_AT / norm
            optimizer.step()
            norms[f"step {number + 1}"] = norm
        return dict(model.named_parameters()), norms

    (right, right_norms), (wrong, wrong_norms) = trained(False), trained(True)

    half.provide_fused_adam(lab)
    from deepspeed.runtime.fp16 import fused_optimizer

    if hasattr(fused_optimizer.FP16_Optimizer, "_get_norm_with_moe_layers"):
        raise CannotTell("through 0.14.0 the norms of the ranks are averaged: another bug")
    model = Sharded(lab, 2)
    config = {
        "train_micro_batch_size_per_gpu": len(steps[0][0][0]),
        "optimizer": {"type": "Adam", "params": {**adam, "weight_decay": 0.0, "torch_adam": False}},
        "fp16": {"enabled": True, "initial_scale_power": _LOSS_SCALE.bit_length() - 1},
        "gradient_clipping": _CLIP_AT,
    }
    engine = lab.initialize(model, config, model_parameters=model.groups())
    norms = {}
    for number, step in enumerate(steps):
        inputs, targets = step[lab.rank]
        engine.backward(half.loss(engine, inputs, targets, next(model.parameters())))
        engine.step()
        norms[f"step {number + 1}"] = torch.tensor(float(engine.get_global_grad_norm()))
    after = f"after {_STEPS} steps"
    phrase = "those of the experts' weights"
    first = reference.compare(norms, right_norms, {phrase: wrong_norms}, within=0.02, after=after, what="the norms")
    seen = model.named(lab.parameters(engine))
    second = reference.compare(
        seen,
        {name: right[name] for name in seen},
        {phrase: {name: wrong[name] for name in seen}},
        within=0.02,
        after=after,
    )
    return f"{first}; {second}"
