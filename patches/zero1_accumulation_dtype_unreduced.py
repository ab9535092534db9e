"""ZeRO-1 with gradients accumulated in another dtype: no gradient is averaged over the ranks.

Why: with `data_types.grad_accum_dtype: "fp32"` ZeRO-1 adds up the micro-batches' gradients of fp16, and of bf16 with
    optimizer offload (without it bf16 has BF16_Optimizer), in tensors of their own. What it reduces is a copy of such a
    tensor in the model's dtype, and the average stays in the copy: each rank steps its partition of the weights with
    its own gradients. Nothing fails; with more ranks only the gradients' noise does not get smaller.
    With `overlap_comm` the copy is made before the last micro-batch's gradient is added (0.13.0 to 0.16.4), without
    gradient accumulation of nothing: AttributeError. One rank has nothing to average, and is right but for that.
How: with more than one rank the copy takes the place of what it is a copy of, before it is reduced; before that, what
    the hook is called for is added.
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

_OPTIMIZER = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"
_GRADIENT = f"{_OPTIMIZER}.get_gradient_for_reduction"


def accumulate(optimizer: Any, param: Any) -> None:
    """Add the gradient that a hook is called for to what earlier micro-batches gave, where that is not done yet."""
    if not optimizer.use_grad_accum_attribute or param.grad is None:
        return
    gradient = param.grad.to(optimizer.gradient_accumulation_dtype)
    if param.grad_accum is None:
        param.grad_accum = gradient
    else:
        param.grad_accum.add_(gradient.view(param.grad_accum.shape))
    param.grad = None


PATCH = Patch(
    title="ZeRO-1 + data_types.grad_accum_dtype: no gradient is averaged over the ranks",
    severity=Severity.WRONG_RESULT,
    # the fault is older, but nothing older than 0.12.0 has been run
    affects={"deepspeed": ">=0.12.0,<0.19.8"},
    changes=(
        Edit(
            _GRADIENT,
            before="return param.grad_accum.to(self.dtype) if param.grad_accum is not None else None",
            code="if param.grad_accum is not None and dist.get_world_size(group=self.dp_process_group) > 1:\n"
            "    param.grad_accum = param.grad_accum.to(self.dtype)",
        ),
        Edit(
            f"{_OPTIMIZER}.reduce_independent_p_g_buckets_and_remove_grads",
            before="grad_reduc = self.get_gradient_for_reduction(param)",
            code=f"from {__name__} import accumulate\naccumulate(self, param)",
        ),
    ),
    symptom="",
    upstream=("https://github.com/deepspeedai/DeepSpeed/pull/2847",),
    fixed_in="0.19.8",
    fixed=(Source(_GRADIENT, "return param.grad_accum if param.grad_accum is not None else None"),),
    ranks=2,
)

_LEARNING_RATE = 0.1
_CASES = {
    "one micro-batch": (1, {}),
    "two": (2, {}),
    "one, overlap_comm": (1, {"overlap_comm": True}),
    "two, overlap_comm": (2, {"overlap_comm": True}),
}


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    seen = {}
    for name, (accumulation, zero) in _CASES.items():
        mean, alone = _off(lab, accumulation, zero)
        if alone < 0.05 < mean:
            raise BugPresent(
                f"{name}: each rank's partition was stepped with its own gradient: {mean:.2f} off the ranks' average"
            )
        assert mean < 0.05, f"{name}: {mean:.2f} off the average of the ranks' gradients"
        seen[name] = mean
    largest = max(seen.values())
    return f"the steps are those of the average of both ranks' gradients within {largest:.1e} ({', '.join(seen)})"


def _off(lab: Lab, accumulation: int, zero: dict[str, Any]) -> tuple[float, float]:
    """How far the first step is from one with the ranks' average, and from one with each rank's own gradient."""
    torch = lab.torch
    from dsfix.lab import half
    from dsfix.lab.models import MLP, regression_batch

    batches = [[regression_batch(rank, step=step) for step in range(accumulation)] for rank in range(2)]
    model = MLP().half().float()
    start = torch.cat([p.detach().flatten() for p in model.parameters()])
    own = []
    for micro_batches in batches:
        loss = torch.stack([model.loss(inputs, targets) for inputs, targets in micro_batches]).mean()
        own.append(torch.cat([each.flatten() for each in torch.autograd.grad(loss, list(model.parameters()))]))

    engine_model = MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0][0]),
        "gradient_accumulation_steps": accumulation,
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "fp16": {"enabled": True, "loss_scale": 1},
        "data_types": {"grad_accum_dtype": "fp32"},
        "zero_optimization": {"stage": 1, **zero},
        "zero_allow_untested_optimizer": True,
    }
    engine = lab.initialize(engine_model, config, model_parameters=engine_model.parameters())
    for inputs, targets in batches[lab.rank]:
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

    return off((own[0] + own[1]) / 2), off(*own)
