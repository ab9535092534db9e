"""ZeRO-1 and ZeRO-2: the gradient norm is finite although a gradient is inf or nan, and is clipped by.

Why: DeepSpeed's norm of a parameter group with a gradient that is inf or nan is -1. Combined with the other groups' it
    counts as 1: `get_global_grad_norm()` and the monitors report an ordinary norm (1.0 for one group), and clipping
    divides by it, while the weights of that group become inf or nan. Nothing fails. fp16 finds inf and nan earlier,
    and so does bf16 where `bf16.check_grad_overflow` is on (the default since 0.19.3); others do not check.
How: the norm of such a group is inf, and so is that of all, as in 0.19.8. The step is made, as without the patch.
Changes: with clipping, the other groups' gradients become 0 in such a step, as by PyTorch's `clip_grad_norm_`; the
    group's own weights are lost either way. A checkpoint from before such a step is intact.
Workaround: Scripts leave out a micro-batch whose loss is not finite on some rank. That can stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_NORM = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.scaled_global_norm"


def infinite(norms: list[Any]) -> None:
    """-1 stands for a norm that is not finite; one of integers crashes in torch: zero12_offload_nonfinite_norm_long."""
    import torch

    for i, norm in enumerate(norms):
        if not torch.is_tensor(norm):
            norms[i] = float("inf") if norm < 0 else norm
        elif norm.is_floating_point():
            norms[i] = norm.masked_fill(norm < 0, float("inf"))


PATCH = Patch(
    title="ZeRO-1/2: with an inf or nan gradient the reported norm is finite, and clipping divides by it",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.19.8"},
    changes=(
        Edit(
            _NORM,
            before="if self.has_moe_layers:\n    ...",
            code="infinite(norm_groups)",
            uses=(infinite,),
            effect=RAN,
        ),
    ),
    upstream={},
    fixed_in="0.19.8",
    fixed=(Source(_NORM, "combine_grad_norm_groups(norm_groups, norm_type=norm_type)"),),
)

_LEARNING_RATE = 0.1
_CLIP = 0.5


def reproduce(lab: Lab) -> str:
    return "; ".join(_norm(lab, stage) for stage in (1, 2))


def _norm(lab: Lab, stage: int) -> str:
    torch = lab.torch
    inputs, targets = lab.models.regression_batch(rank=0, step=0)
    apart = torch.nn.Parameter(torch.zeros(1))
    reference = lab.models.MLP()
    reference.loss(inputs, targets).backward()
    finite = float(torch.nn.utils.clip_grad_norm_(reference.parameters(), float("inf")))

    model = lab.models.MLP()
    start = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    model.apart = apart
    config = {
        "train_micro_batch_size_per_gpu": len(inputs),
        "gradient_clipping": _CLIP,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage},
    }
    ordinary = [parameter for name, parameter in model.named_parameters() if name != "apart"]
    optimizer = torch.optim.SGD([{"params": ordinary}, {"params": [apart]}], lr=_LEARNING_RATE)
    engine = lab.initialize(model, config, optimizer=optimizer)
    loss = torch.nn.functional.mse_loss(engine(inputs.to(lab.device)), targets.to(lab.device))
    engine.backward(loss + float("inf") * model.apart.sum())
    engine.step()

    norm = float(engine.get_global_grad_norm())
    if abs(norm - (finite**2 + 1) ** 0.5) < 1e-3 * norm:
        raise BugPresent(f"ZeRO-{stage}: a gradient is inf, and the reported norm is {norm:.4g}")
    assert norm == float("inf"), f"ZeRO-{stage}: a gradient is inf, and the reported norm is {norm}"
    parameters = lab.parameters(engine)
    parameters.pop("apart")
    # clipped by an infinite norm, or the step is skipped
    difference = lab.reference.largest_difference(parameters, start)
    assert difference.relative == 0, f"ZeRO-{stage}: weights with a finite gradient have moved; {difference}"
    return f"ZeRO-{stage}: a gradient is inf, and so is the reported norm"
