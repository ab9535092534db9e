"""ZeRO-1 and ZeRO-2 with optimizer offload: a parameter that a step leaves out is updated with its gradient of before.

Why: the gradients that the optimizer on the CPU works with stand in one buffer for good. At the last micro-batch of a
    step each parameter that it reaches writes its own; nothing clears the others. A parameter that no micro-batch of
    the step reaches (another task's head, a branch, a layer that is dropped) is updated with the gradient of the last
    step that did reach it, and so is one that only earlier micro-batches reach. One that a later micro-batch reaches
    first has its gradient added to what ZeRO-2 kept of an older step. Nothing fails; the gradient norm is without them.
How: after the last micro-batch's backward pass, what it has not written is zeroed or, where earlier micro-batches
    reached it, taken from what is kept of them; what is kept starts from zero in each step.
Changes: for models of which a step may leave parameters out, such a step's gradient for them is zero, as without
    offload; plain PyTorch skips them, which with momentum or weight decay is not the same. All others: bit for bit as
    before. A checkpoint written without the patch loads; the weights that were left out, and their moments, hold
    repeated updates. ZenFlow, which has code of its own, and in 0.19.8 `managed_gradient_accumulation` off are not
    covered.
Upstream: not fixed in 0.19.8, and not known to be reported; as old as ZeRO-Offload,
    https://github.com/deepspeedai/DeepSpeed/pull/391. ZeRO-3's own: zero3_left_out_gradients.
Retire: when DeepSpeed 0.19.8 is no longer supported here, if a release after it zeroes such gradients.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OPTIMIZER = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"


def reach(optimizer: Any, param_id: int) -> None:
    """A micro-batch reaches this parameter: what is kept of it is of this step."""
    reached = optimizer.__dict__.setdefault("_dsfix_reached", set())
    if param_id not in reached and optimizer.micro_step_id > 0:
        kept = optimizer.accumulated_grads_in_cpu[param_id]
        # with master weights of 16 bits it is what an earlier pass of this step gave the optimizer
        if (
            param_id not in optimizer.norm_for_param_grads
            or kept.data_ptr() != _gradient(optimizer, param_id).data_ptr()
        ):
            kept.zero_()
    reached.add(param_id)


def complete(optimizer: Any) -> None:
    """At the boundary: give the optimizer a gradient of this step for all that the last micro-batch did not reach."""
    at_boundary = optimizer.is_gradient_accumulation_boundary
    at_boundary = at_boundary() if callable(at_boundary) else at_boundary
    if not (optimizer.cpu_offload and at_boundary) or getattr(optimizer, "zenflow", False):
        return
    waited = False
    for param_id in map(optimizer.get_param_id, itertools.chain.from_iterable(optimizer.params_in_partition)):
        if param_id in optimizer.norm_for_param_grads:
            continue
        gradient = _gradient(optimizer, param_id)
        earlier = _earlier(optimizer, param_id)
        if earlier is None:
            gradient.zero_()
            continue
        if not waited:
            _wait()
            waited = True
        gradient.copy_(earlier)
        optimizer.norm_for_param_grads[param_id] = gradient.double().norm(2)
        if optimizer._has_inf_or_nan(earlier):
            optimizer.local_overflow = True


def _gradient(optimizer: Any, param_id: int) -> Any:
    """What the optimizer on the CPU works with, this rank's part of the parameter."""
    group, _, dest_offset, numel = optimizer.grad_position[param_id]
    return optimizer.single_partition_of_fp32_groups[group].grad.view(-1).narrow(0, dest_offset, numel)


def _earlier(optimizer: Any, param_id: int) -> Any:
    """This rank's part of what earlier micro-batches of this step gave, or None."""
    group, source_offset, dest_offset, numel = optimizer.grad_position[param_id]
    if param_id in optimizer.__dict__.get("_dsfix_reached", ()):
        kept = optimizer.accumulated_grads_in_cpu[param_id].view(-1)
        return kept if kept.numel() == numel else kept.narrow(0, source_offset, numel)
    if param_id in optimizer.__dict__.get("_offload_accumulated_param_ids", ()):  # in fp32 for a model of 16 bits
        return optimizer.averaged_gradients[group].flat_partition.narrow(0, dest_offset, numel)
    return None


def _wait() -> None:
    """For the copies to the CPU, on whatever stream: from here on the CPU reads them."""
    from deepspeed.accelerator import get_accelerator  # type: ignore[import-not-found,unused-ignore]

    get_accelerator().synchronize()


PATCH = Patch(
    title="ZeRO-1/2 + optimizer offload: a parameter that a step leaves out is updated with its gradient of before",
    severity=Severity.WRONG_RESULT,
    # the fault is older, but nothing older than 0.12.0 has been run
    affects={"deepspeed": ">=0.12.0"},
    changes=(
        Edit(
            f"{_OPTIMIZER}.async_accumulate_grad_in_cpu_via_gpu",
            after="if param_id not in self.accumulated_grads_in_cpu:\n    ...",
            code=f"from {__name__} import reach\nreach(self, param_id)",
        ),
        Edit(
            f"{_OPTIMIZER}.independent_gradient_partition_epilogue",
            before="if self.cpu_offload is False:\n    ...",
            code=f"from {__name__} import complete\ncomplete(self)",
        ),
        Edit(
            f"{_OPTIMIZER}.reset_cpu_buffers",
            after="self.norm_for_param_grads = {}",
            code="self._dsfix_reached = set()",
        ),
    ),
    symptom="",
    upstream=("https://github.com/deepspeedai/DeepSpeed/pull/391",),
    fixed_in=None,
)

_LEARNING_RATE = 0.1
# which micro-batches of each step use the second branch: all, none, only the first, only the last
_STEPS = ((True, True), (False, False), (True, False), (False, True))


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    from dsfix.lab.models import Branches, regression_batch
    from dsfix.lab.reference import largest_difference, train

    steps = [
        [(*regression_batch(rank=0, step=2 * number + micro), both) for micro, both in enumerate(step)]
        for number, step in enumerate(_STEPS)
    ]
    model = Branches()
    expected = train(model, steps, model.loss, "SGD", lr=_LEARNING_RATE).parameters

    model = Branches()
    config = {
        "train_micro_batch_size_per_gpu": len(steps[0][0][0]),
        "gradient_accumulation_steps": len(steps[0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    weights = [lab.parameters(engine)]
    for step in steps:
        for inputs, targets, both in step:
            outputs = engine(inputs.to(lab.device), both)
            engine.backward(torch.nn.functional.mse_loss(outputs, targets.to(lab.device)))
            engine.step()
        weights.append(lab.parameters(engine))

    difference = largest_difference(weights[-1], expected)
    # SGD repeats the first step's update of the second branch in the second step, which does not use it
    second = [{n: p for n, p in each.items() if n.startswith("second.")} for each in weights[:3]]
    repeated = {name: 2 * second[1][name] - second[0][name] for name in second[0]}
    left_out = largest_difference(second[2], second[1])
    if largest_difference(second[2], repeated).relative < 1e-4 < min(difference.relative, left_out.relative):
        raise BugPresent(f"a step that left a branch out repeated the branch's update of the step before: {difference}")
    assert difference.relative < 1e-4, f"after steps that left a branch out {difference}"
    return f"after steps that left a branch out parameters are plain PyTorch's within {difference.relative:.1e}"
