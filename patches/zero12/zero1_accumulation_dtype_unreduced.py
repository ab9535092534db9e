"""ZeRO-1 with gradients accumulated in another dtype: gradients are not averaged across ranks.

Why: with `data_types.grad_accum_dtype: "fp32"`, ZeRO-1 accumulates the gradients of fp16 micro-batches, and of bf16
    ones with optimizer offload (without it bf16 uses BF16_Optimizer), in separate tensors. It reduces a copy of such a
    tensor in the model's dtype, and the average stays in the copy: each rank steps its partition of the weights with
    its own gradients. Nothing fails; more ranks do not reduce gradient noise.
    With `overlap_comm` the copy is made before the last micro-batch's gradient is added (0.13.0 to 0.16.4) and, without
    gradient accumulation, of nothing: AttributeError. One rank has nothing to average, and is otherwise correct.
How: with more than one rank the copy replaces its source before it is reduced; before that, the gradient that the hook
    is called for is added.
Changes: each step uses the gradients of all ranks. They are communicated in the model's dtype, as before; 0.19.8
    communicates them in the accumulation dtype. Steps of several backward passes, which newer releases reduce one by
    one, stay wrong: the last pass counts most. A checkpoint written without the patch loads.
Workaround: None in the script; ZeRO-2, or accumulation in the parameters' dtype, helps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OPTIMIZER = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"
_GRADIENT = f"{_OPTIMIZER}.get_gradient_for_reduction"


def accumulate(optimizer: Any, param: Any) -> None:
    """Add the gradient that a hook is called for to those of earlier micro-batches, unless that is already done."""
    if not optimizer.use_grad_accum_attribute or param.grad is None:
        return
    gradient = param.grad.to(optimizer.gradient_accumulation_dtype)
    if param.grad_accum is None:
        took_effect(__name__, "gradients were accumulated before they were reduced; there would have been none")
        param.grad_accum = gradient
    else:
        param.grad_accum.add_(gradient.view(param.grad_accum.shape))
    param.grad = None


PATCH = Patch(
    title="ZeRO-1 + data_types.grad_accum_dtype: gradients are not averaged across ranks",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.19.8"},
    changes=(
        Edit(
            _GRADIENT,
            before="return param.grad_accum.to(self.dtype) if param.grad_accum is not None else None",
            code="if param.grad_accum is not None and dist.get_world_size(group=self.dp_process_group) > 1:\n"
            "    param.grad_accum = param.grad_accum.to(self.dtype)",
            effect="gradients were averaged across the ranks; each rank would have used its own",
            when="param.grad_accum is not None and param.grad_accum.dtype != self.dtype"
            " and dist.get_world_size(group=self.dp_process_group) > 1",
        ),
        Edit(
            f"{_OPTIMIZER}.reduce_independent_p_g_buckets_and_remove_grads",
            before="grad_reduc = self.get_gradient_for_reduction(param)",
            code="accumulate(self, param)",
            uses=(accumulate,),
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/2847": "introduced",
    },
    fixed_in="0.19.8",
    fixed=(Source(_GRADIENT, "return param.grad_accum if param.grad_accum is not None else None"),),
    ranks=2,
    config=lambda job: (
        job.stage == 1
        and job.fp32_gradients
        and (job.on("fp16") is True or (job.offloads_optimizer and job.half))
        and job.ranks != 1
    ),
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
        mean, own = _deviations(lab, accumulation, zero)
        if own < 0.05 < mean:
            raise BugPresent(
                f"{name}: each rank stepped its partition with its own gradient: {mean:.2f} off the average"
            )
        assert mean < 0.05, f"{name}: {mean:.2f} off the average of the ranks' gradients"
        seen[name] = mean
    largest = max(seen.values())
    return f"the steps match the average of both ranks' gradients within {largest:.1e} ({', '.join(seen)})"


def _deviations(lab: Lab, accumulation: int, zero: dict[str, Any]) -> tuple[float, float]:
    """Deviation of the first step's gradient from the ranks' average, and from each rank's own gradient."""
    torch = lab.torch
    from .. import _half as half

    batches = [[lab.models.regression_batch(rank, step=step) for step in range(accumulation)] for rank in range(2)]
    model = lab.models.MLP().half().float()
    start = torch.cat([p.detach().flatten() for p in model.parameters()])
    own = []
    for micro_batches in batches:
        loss = torch.stack([model.loss(inputs, targets) for inputs, targets in micro_batches]).mean()
        own.append(torch.cat([each.flatten() for each in torch.autograd.grad(loss, list(model.parameters()))]))

    engine_model = lab.models.MLP()
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
    end = torch.cat([after[name].float().flatten() for name, _ in model.named_parameters()])
    used = (start - end) / _LEARNING_RATE

    def deviation(*gradients: Any) -> float:
        """Relative distance of the gradient used from the nearest of these, element by element."""
        nearest = torch.stack([(used - each).abs() for each in gradients]).min(0).values
        return float(nearest.norm() / used.norm())

    return deviation((own[0] + own[1]) / 2), deviation(*own)
