"""ZeRO-1/2 with optimizer offload: parameters unused in a step are updated with a stale gradient.

Why: the CPU optimizer reads its gradients from one permanent buffer. At the last micro-batch of a step each parameter
    that it uses writes its own gradient; nothing clears the others. A parameter that no micro-batch of the step uses
    (another task's head, a branch, a dropped layer) is updated with the gradient of the last step that did use it, and
    so is one that only earlier micro-batches use. One that is first used by a later micro-batch has its gradient added
    to what ZeRO-2 kept of an older step. Nothing fails; the gradient norm does not include the stale gradients. The bug
    is as old as ZeRO-Offload. ZeRO-3 has its own: zero3_left_out_gradients.
How: after the last micro-batch, what it has not written is zeroed or taken from what earlier micro-batches of the step
    have kept. What the script has discarded since is zeroed: meanwhile, `torch.nn.Parameter.grad` is a property that
    records it. A script that reads or sets `.grad` there may or may not discard: it counts as discarded, with one
    warning on rank 0. A gradient that only the script has set is not zeroed.
Changes: parameters unused in a step get a zero gradient, as without offload; PyTorch skips them, which differs with
    momentum or weight decay. A checkpoint written without the patch loads; the unused weights and their moments contain
    repeated updates. ZenFlow, and `managed_gradient_accumulation` off in 0.19.8, are not covered.
Workaround: Scripts add what a step does not use to the output, multiplied by 0. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source
from dsfix.process.effects import ran, took_effect

from .._shared import tell_of_doubt, unwatch, used_again, watch

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OPTIMIZER = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"


def reach(optimizer: Any, param_id: int, param: Any) -> None:
    """Record that a micro-batch uses this parameter; its first use in a step clears what is kept of older steps."""
    used_again(optimizer, param)
    reached = optimizer.__dict__.setdefault("_dsfix_reached", set())
    if param_id not in reached and optimizer.micro_step_id > 0:
        kept = optimizer.accumulated_grads_in_cpu[param_id]
        # with 16-bit master weights it is what an earlier pass of this step gave the optimizer
        if (
            param_id not in optimizer.norm_for_param_grads
            or kept.data_ptr() != _gradient(optimizer, param_id).data_ptr()
        ):
            ran(__name__)
            kept.zero_()
    reached.add(param_id)


def complete(optimizer: Any) -> None:
    """At the boundary, give the optimizer a gradient of this step for all that the last micro-batch did not use."""
    at_boundary = optimizer.is_gradient_accumulation_boundary
    at_boundary = at_boundary() if callable(at_boundary) else at_boundary
    if not optimizer.cpu_offload or getattr(optimizer, "zenflow", False):
        return
    if not at_boundary:
        if 0 < len(optimizer.__dict__.get("_dsfix_reached", ())) < sum(map(len, optimizer.params_in_partition)):
            watch(optimizer)
        return
    norms = optimizer.norm_for_param_grads
    given = optimizer.__dict__.get("_dsfix_given", set())  # what is not zero since the last step
    kept = {
        *optimizer.__dict__.get("_dsfix_reached", ()),
        *optimizer.__dict__.get("_offload_accumulated_param_ids", ()),
    }
    discarded = _discarded(optimizer, kept - norms.keys())
    waited = False
    for param_id in (given | kept) - norms.keys():
        gradient = _gradient(optimizer, param_id)
        earlier = None if param_id in discarded else _earlier(optimizer, param_id)
        if earlier is None:
            if param_id in given:
                took_effect(__name__, "a parameter unused in the step got no gradient (unpatched: an older step's)")
            gradient.zero_()
            continue
        if not waited:
            _wait()
            waited = True
        took_effect(__name__, "gradients that only earlier micro-batches have were used (unpatched: lost)")
        gradient.copy_(earlier)
        norms[param_id] = gradient.double().norm(2)
        if optimizer._has_inf_or_nan(earlier):
            optimizer.local_overflow = True
    optimizer._dsfix_given = set(norms)


def _discarded(optimizer: Any, kept: set[int]) -> set[int]:
    """Of the parameters of which only earlier micro-batches are kept, those that the script has discarded since."""
    discards = unwatch(optimizer)
    if not discards.certain | discards.doubtful:
        return set()
    parameters = {
        optimizer.get_param_id(param): id(param) for group in optimizer.params_in_partition for param in group
    }
    if any(parameters.get(each) in discards.doubtful for each in kept):
        tell_of_doubt("zero12_offload_left_out_gradients")
    return {each for each in kept if parameters.get(each) in discards.certain | discards.doubtful}


def _gradient(optimizer: Any, param_id: int) -> Any:
    """The CPU optimizer's gradient of this rank's part of the parameter."""
    group, _, dest_offset, numel = optimizer.grad_position[param_id]
    return optimizer.single_partition_of_fp32_groups[group].grad.view(-1).narrow(0, dest_offset, numel)


def _earlier(optimizer: Any, param_id: int) -> Any:
    """This rank's part of the gradient of earlier micro-batches of this step, or None."""
    group, source_offset, dest_offset, numel = optimizer.grad_position[param_id]
    if param_id in optimizer.__dict__.get("_dsfix_reached", ()):
        kept = optimizer.accumulated_grads_in_cpu[param_id].view(-1)
        return kept if kept.numel() == numel else kept.narrow(0, source_offset, numel)
    if param_id in optimizer.__dict__.get("_offload_accumulated_param_ids", ()):  # fp32, for a 16-bit model
        return optimizer.averaged_gradients[group].flat_partition.narrow(0, dest_offset, numel)
    return None


def _wait() -> None:
    """Wait for the copies to the CPU on all streams, because the CPU reads them next."""
    from deepspeed.accelerator import get_accelerator

    get_accelerator().synchronize()


PATCH = Patch(
    title="ZeRO-1/2 + optimizer offload: parameters unused in a step are updated with a stale gradient",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0"},
    changes=(
        Edit(
            f"{_OPTIMIZER}.async_accumulate_grad_in_cpu_via_gpu",
            after="if param_id not in self.accumulated_grads_in_cpu:\n    ...",
            code="reach(self, param_id, param)",
            uses=(reach,),
        ),
        Edit(
            f"{_OPTIMIZER}.independent_gradient_partition_epilogue",
            before="if self.cpu_offload is False:\n    ...",
            code="complete(self)",
            uses=(complete,),
        ),
        Edit(
            f"{_OPTIMIZER}.reset_cpu_buffers",
            after="self.norm_for_param_grads = {}",
            code="self._dsfix_reached = set()",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/391": "introduced, with ZeRO-Offload",
    },
    present=(
        # the step reads the buffer as it is and leaves it as it is
        Source(
            f"{_OPTIMIZER}.step",
            """
single_grad_partition = self.single_partition_of_fp32_groups[i].grad
self.unscale_and_clip_grads([single_grad_partition], scaled_global_grad_norm)
self.timers(OPTIMIZER_GRADIENTS_TIMER).stop()
self.timers(OPTIMIZER_STEP_TIMER).start()
self._optimizer_step(i)
bit16_partitions = self.parallel_partitioned_bit16_groups[i]
fp32_partition = self.single_partition_of_fp32_groups[i]
""",
        ),
        Source(
            f"{_OPTIMIZER}.step",
            "if self.cpu_offload:\n    self.reset_cpu_buffers()\nself.timers(OPTIMIZER_ALLGATHER_TIMER).start()",
        ),
        Source(f"{_OPTIMIZER}.reset_cpu_buffers", "self.norm_for_param_grads = {}\nself.local_overflow = False"),
    ),
)

_LEARNING_RATE = 0.1
# which micro-batches of each step use the second branch: all, none, only the first, only the last
_STEPS = ((True, True), (False, False), (True, False), (False, True))


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    largest_difference = lab.reference.largest_difference
    steps = [
        [(*lab.models.regression_batch(rank=0, step=2 * number + micro), both) for micro, both in enumerate(step)]
        for number, step in enumerate(_STEPS)
    ]
    model = lab.models.Branches()
    expected = lab.reference.train(model, steps, model.loss, "SGD", lr=_LEARNING_RATE).parameters

    model = lab.models.Branches()
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
        raise BugPresent(f"a step without a branch repeated the branch's previous update: {difference}")
    assert difference.relative < 1e-4, f"after steps without a branch {difference}"
    return f"after steps without a branch the parameters match plain PyTorch within {difference.relative:.1e}"
