"""ZeRO-1 with gradients accumulated in another dtype: no gradient is averaged over the ranks.

Why: with `data_types.grad_accum_dtype: "fp32"` ZeRO-1 adds up the micro-batches' gradients of fp16, and of bf16 with
    optimizer offload (without it bf16 has BF16_Optimizer), in tensors of their own. What it reduces is a copy of such a
    tensor in the model's dtype, and the average stays in the copy: each rank steps its partition of the weights with
    its own gradients. Nothing fails; with more ranks only the gradients' noise does not get smaller.
How: the copy takes the place of what it is a copy of, before it is reduced.
Changes: each step is that of all ranks' gradients. They are sent in the model's dtype, as before; 0.19.8 sends them in
    the one of the accumulation. A checkpoint written without the patch loads; its training had gradients with more
    noise.
Upstream: brought by https://github.com/deepspeedai/DeepSpeed/pull/2847; ended in 0.19.8.
Retire: when DeepSpeed 0.19.7 is no longer supported here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_GRADIENT = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.get_gradient_for_reduction"

PATCH = Patch(
    title="ZeRO-1 + data_types.grad_accum_dtype: no gradient is averaged over the ranks",
    severity=Severity.WRONG_RESULT,
    # the fault is older, but nothing older than 0.12.0 has been run
    affects={"deepspeed": ">=0.12.0,<0.19.8"},
    changes=(
        Edit(
            _GRADIENT,
            before="return param.grad_accum.to(self.dtype) if param.grad_accum is not None else None",
            code="if param.grad_accum is not None:\n    param.grad_accum = param.grad_accum.to(self.dtype)",
        ),
    ),
    symptom="",
    upstream=("https://github.com/deepspeedai/DeepSpeed/pull/2847",),
    fixed_in="0.19.8",
    fixed=(Source(_GRADIENT, "return param.grad_accum if param.grad_accum is not None else None"),),
    ranks=2,
)

_LEARNING_RATE = 0.1


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    lab.require_ranks(2)
    from dsfix.lab import half
    from dsfix.lab.models import MLP, regression_batch

    batches = [regression_batch(rank, step=0) for rank in range(2)]
    model = MLP().half().float()
    start = torch.cat([p.detach().flatten() for p in model.parameters()])
    own = []
    for inputs, targets in batches:
        gradients = torch.autograd.grad(model.loss(inputs, targets), list(model.parameters()))
        own.append(torch.cat([each.flatten() for each in gradients]))

    engine_model = MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "fp16": {"enabled": True, "loss_scale": 1},
        "data_types": {"grad_accum_dtype": "fp32"},
        "zero_optimization": {"stage": 1},
        "zero_allow_untested_optimizer": True,
    }
    engine = lab.initialize(engine_model, config, model_parameters=engine_model.parameters())
    inputs, targets = batches[lab.rank]
    engine.backward(half.loss(engine, inputs, targets, next(engine_model.parameters())))
    engine.step()

    after: dict[str, Any] = lab.parameters(engine)
    given = (
        start - torch.cat([after[name].float().flatten() for name, _ in model.named_parameters()])
    ) / _LEARNING_RATE

    def off(*gradients: Any) -> float:
        """How far the gradient that was given is from the nearest of these, element by element."""
        nearest = torch.stack([(given - each).abs() for each in gradients]).min(0).values
        return float(nearest.norm() / given.norm())

    mean, alone = off((own[0] + own[1]) / 2), off(*own)
    if alone < 0.05 < mean:
        raise BugPresent(f"each rank's partition was stepped with its own gradient: {mean:.2f} off the ranks' average")
    assert mean < 0.05, f"{mean:.2f} off the average of the ranks' gradients"
    return f"the step is that of the average of both ranks' gradients within {mean:.1e}"
