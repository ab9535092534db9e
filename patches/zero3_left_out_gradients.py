"""ZeRO-3: a parameter that a step leaves out is updated with its gradient of an earlier step.

Why: ZeRO-3 keeps each gradient in a buffer that the first micro-batch of a step overwrites, later ones add to, and
    nothing clears. A parameter that the forward pass does not reach (another task's head, a branch, a layer that is
    dropped) keeps the gradient of the last step that did reach it, and is updated with it in each step; one that a
    later micro-batch reaches first has its gradient added to the old one. With optimizer offload, where at the last
    micro-batch gradients are handed over, what only earlier micro-batches reached is old as well, and so is what is
    frozen for now, which without offload gets zeros. Nothing fails.
How: after the first micro-batch of a step the buffers that it did not reach are zeroed; at the last one the offloaded
    gradients of all parameters that it did not reach are taken from their buffers.
Changes: for models of which a step may leave parameters out, such a step's gradient for them is zero, as with ZeRO-1
    and 2; plain PyTorch skips them, which with momentum or weight decay is not the same. All others: bit for bit as
    before. A checkpoint written without the patch loads; the weights that were left out, and their moments, hold
    repeated updates. MiCS, SuperOffload and ZenFlow, which have code of their own, gradients offloaded to NVMe, and
    optimizer offload with `managed_gradient_accumulation` off are not covered.
Upstream: not fixed, and not known to be reported; as old as https://github.com/deepspeedai/DeepSpeed/pull/1453.
Retire: when DeepSpeed 0.19.8 is no longer supported here, if a release after it zeroes such gradients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OPTIMIZER = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3"
# by parameter, the micro-batch of this step that reached it last
_BEGIN = "self._dsfix_written = {}"


def renew(optimizer: Any, buffers: dict[int, Any]) -> None:
    """Zero the `buffers` of parameters that this step has not reached; bring offloaded gradients up to date."""
    written = optimizer.__dict__.get("_dsfix_written")
    if not written:  # no gradient, or a subclass that partitions gradients on its own
        return
    at_boundary = optimizer.is_gradient_accumulation_boundary
    at_boundary = optimizer.offload_optimizer and (at_boundary() if callable(at_boundary) else at_boundary)
    for group in optimizer.fp16_groups:
        for param in group:
            if written.get(param.ds_id) == optimizer.micro_step_id:
                continue
            if optimizer.micro_step_id == 0:
                buffers[param.ds_id].zero_()
            if at_boundary:
                _hand_over(optimizer, param, buffers[param.ds_id], param.ds_id in written)


def _hand_over(optimizer: Any, param: Any, gradient: Any, has_norm: bool) -> None:
    group, offset, _ = optimizer.grad_position[optimizer.get_param_id(param)]
    if optimizer._swappable_optimizer_subgroup(group):
        return
    optimizer.fp32_partitioned_groups_flat[group].grad.narrow(0, offset, gradient.numel()).copy_(gradient)
    if has_norm:
        norm = optimizer._constant_buffered_norm2(gradient.to(param.device))
        optimizer.norm_for_param_grads[optimizer.get_param_id(param)] = norm


PATCH = Patch(
    title="ZeRO-3: a parameter that a step leaves out is updated with its gradient of an earlier step",
    severity=Severity.WRONG_RESULT,
    # the fault is older, but nothing older than 0.12.0 has been run
    affects={"deepspeed": ">=0.12.0"},
    changes=(
        Edit(
            f"{_OPTIMIZER}.partition_grads",
            after="buffers.append(grad_buffer)",
            code="self.__dict__.setdefault('_dsfix_written', {})[param.ds_id] = self.micro_step_id",
        ),
        Edit(
            f"{_OPTIMIZER}.independent_gradient_partition_epilogue",
            before="if not self.offload_optimizer:\n    ...",
            code=f"from {__name__} import renew\nrenew(self, self.__param_id_to_grad_partition)",
        ),
        Edit(f"{_OPTIMIZER}.zero_grad", after="self.micro_step_id = 0", code=_BEGIN),
        Edit(f"{_OPTIMIZER}._pre_step", after="self.micro_step_id = 0", code=_BEGIN),
    ),
    symptom="",
    upstream=("https://github.com/deepspeedai/DeepSpeed/pull/1453",),
    fixed_in=None,
)

_LEARNING_RATE = 0.1


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    from dsfix.lab.models import Branches, regression_batch
    from dsfix.lab.reference import largest_difference, train

    # the second step leaves the branch out
    steps = [[(*regression_batch(rank=0, step=step), step == 0)] for step in range(2)]
    model = Branches()
    once = train(model, steps[:1], model.loss, "SGD", lr=_LEARNING_RATE).parameters
    model = Branches()
    expected = train(model, steps, model.loss, "SGD", lr=_LEARNING_RATE).parameters
    # SGD repeats the update of the first step
    initial = dict(Branches().named_parameters())
    left_out = {n: p for n, p in once.items() if n.startswith("second.")}
    repeated = {**expected, **{n: 2 * p - initial[n].detach() for n, p in left_out.items()}}

    model = Branches()
    config = {
        "train_micro_batch_size_per_gpu": len(steps[0][0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": 3},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for [(inputs, targets, both)] in steps:
        outputs = engine(inputs.to(lab.device), both)
        engine.backward(torch.nn.functional.mse_loss(outputs, targets.to(lab.device)))
        engine.step()

    parameters = lab.parameters(engine)
    difference = largest_difference(parameters, expected)
    if largest_difference(parameters, repeated).relative < 1e-4 < difference.relative:
        raise BugPresent(f"a step that left a branch out repeated the branch's update of the step before: {difference}")
    assert difference.relative < 1e-4, f"after a step that left a branch out {difference}"
    return f"a step that left a branch out left its parameters alone: plain PyTorch's within {difference.relative:.1e}"
