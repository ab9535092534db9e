"""ZeRO-1 in fp16 or with offload, fp32 gradients: a second backward pass adds part of the first one's gradients again.

Why: after the reduction at the accumulation boundary 0.19.8 clears the gradient sum only of the parameters in this
    rank's partition. Another backward pass before the next forward pass (two losses of one output) adds to what is left
    of the others, this rank's own share of the first pass, and reduces it again: with two ranks, a quarter of the other
    rank's first gradient is added once more. Where the second pass leaves a parameter out, only some ranks reduce it.
    Before 0.19.8 the gradients of such a job were not reduced at all (`zero1_accumulation_dtype_unreduced`).
How: clears the sum on all ranks.
Changes: steps of several backward passes of one forward pass, with more than one rank. A checkpoint written without
    the patch loads; it was trained with these gradients.
Workaround: Scripts add up the losses and call `backward` once. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Severity, Source

from ._accumulation_dtype import on_several_ranks

if TYPE_CHECKING:
    from dsfix.lab import Lab

_REDUCE = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.reduce_ipg_grads"
_CLEAR = (
    "if self.contiguous_gradients and self.is_param_in_current_partition[param_id]:\n"
    "    self.copy_grads_in_partition(param, group_idx)"
)
_LEFT = (
    "self.use_grad_accum_attribute and self._use_compact_grad_partition_buffer(group_idx)"
    " and not (self.contiguous_gradients and self.is_param_in_current_partition[param_id])"
)

PATCH = Patch(
    title="ZeRO-1 in fp16 or with offload, fp32 gradients: a second backward pass counts part of the first one twice",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.19.8"},
    changes=(
        Edit(
            _REDUCE,
            after=_CLEAR,
            # its sum is in the partition's buffer, on the rank that owns it
            code=f"if {_LEFT} and not self.zenflow:\n    self.clear_grad_attribute(param)",
            effect="an already reduced gradient was not added again",
            when=f"{_LEFT} and self._epilogue_ran_this_backward",
        ),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/7665": "related: several backward passes of a step"},
    present=(
        Source(_REDUCE, _CLEAR),
        Source(
            "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.copy_grads_in_partition",
            "if self._use_compact_grad_partition_buffer(group_idx):\n"
            "    if self.use_grad_accum_attribute:\n        self.clear_grad_attribute(param)\n    return",
        ),
    ),
    ranks=2,
    config=on_several_ranks,
)

_LEARNING_RATE = 0.1
_OFFLOAD = {"offload_optimizer": {"device": "cpu"}}
_CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "overlap_comm": {"overlap_comm": True},
    "offload": _OFFLOAD,
    "gradients not contiguous": {"contiguous_gradients": False},
}


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    largest = max(_deviation(lab, name, zero) for name, zero in _CASES.items())
    return f"two backward passes of one forward pass add up within {largest:.1e} ({', '.join(_CASES)})"


def _deviation(lab: Lab, name: str, zero: dict[str, Any]) -> float:
    torch = lab.torch
    batches = [lab.models.regression_batch(rank, step=0) for rank in range(2)]
    model = lab.models.MLP().half().float()
    start = torch.cat([p.detach().flatten() for p in model.parameters()])

    def losses(output: Any, targets: Any) -> list[Any]:
        return [(output.float() - targets).square().mean(), (output.float() + 2 * targets).square().mean()]

    passes = []  # by rank: the gradients of both losses
    for inputs, targets in batches:
        of_rank = []
        for each in losses(model(inputs), targets):
            gradients = torch.autograd.grad(each, list(model.parameters()), retain_graph=True)
            of_rank.append(torch.cat([gradient.flatten() for gradient in gradients]))
        passes.append(of_rank)
    right: Any = sum(sum(each) for each in passes) / len(passes)

    engine_model = lab.models.MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "gradient_clipping": 0.0,
        "fp16": {"enabled": True, "loss_scale": 1},
        "data_types": {"grad_accum_dtype": "fp32"},
        "zero_optimization": {"stage": 1, **zero},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    optimizer = torch.optim.SGD(engine_model.parameters(), lr=_LEARNING_RATE)
    engine = lab.initialize(engine_model, config, optimizer=optimizer)
    if not hasattr(engine.optimizer, "_use_compact_grad_partition_buffer"):
        raise CannotTell("this release does not reduce the gradients of such a job: zero1_accumulation_dtype_unreduced")
    inputs, targets = (each.to(lab.device) for each in batches[lab.rank])
    first, second = losses(engine(inputs.half()), targets)
    engine.backward(first, retain_graph=True)
    engine.backward(second)
    engine.step()
    after = lab.parameters(engine)
    used = (start - torch.cat([after[each].float().flatten() for each, _ in model.named_parameters()])) / _LEARNING_RATE

    def off(*gradients: Any) -> float:
        """Relative distance from the nearest of these, element by element."""
        distances = torch.stack([(used - each).abs() for each in gradients])
        return float(distances.min(0).values.norm() / right.norm())

    seen = off(right)
    again = [right + each[0] / 4 for each in passes] + [right + sum(each[0] for each in passes) / 2]
    if off(right, *again) < 0.02 < seen:
        raise BugPresent(f"{name}: gradients of the first pass were counted again: {seen:.2f} off the sum of both")
    assert seen < 0.02, f"{name}: {seen:.2f} off the sum of both passes"
    return seen
