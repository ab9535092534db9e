"""ZeRO-3: parameters unused in a step are updated with a stale gradient.

Why: ZeRO-3 keeps each gradient in a buffer that the first micro-batch of a step overwrites, later ones add to, and
    nothing clears. A parameter that the forward pass does not reach (another task's head, a branch, a dropped layer)
    keeps the gradient of the last step that reached it, and each step updates it with that gradient; a parameter that a
    later micro-batch reaches first has its gradient added to the stale one. With optimizer offload, which takes
    gradients at the last micro-batch, the gradient of a parameter that only earlier micro-batches reached is stale as
    well; so is the gradient of a temporarily frozen parameter, which gets zeros without offload. Nothing fails.
How: after the first micro-batch of a step, the buffers that it did not reach are zeroed if they were filled before; at
    the last one, offloaded gradients of parameters that it did not reach are copied from their buffers unless both are
    zero. A parameter that is never used costs nothing. A gradient that only the script has set is not zeroed.
Changes: unused parameters get a zero gradient, as with ZeRO-1 and 2; PyTorch skips them, which differs with momentum or
    weight decay. A checkpoint written without the patch loads; unused weights and their moments contain repeated
    updates. Not covered: MiCS, SuperOffload, ZenFlow, NVMe, and offload with `managed_gradient_accumulation` off.
Workaround: Scripts add the unused parameters to the loss, multiplied by 0: their gradients are zeros. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OPTIMIZER = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3"
# by parameter, the last micro-batch of this step that reached it
_BEGIN = "self._dsfix_written = {}"


def renew(optimizer: Any, buffers: dict[int, Any]) -> None:
    """Zero the filled `buffers` of parameters that this step has not reached; refresh offloaded gradients."""
    written = optimizer.__dict__.get("_dsfix_written")
    if not written:  # no gradient, or a subclass that partitions gradients itself
        return
    filled = optimizer._dsfix_filled  # the parameters whose buffers are not zero
    left_out = [param for number, param in filled.items() if written.get(number) != optimizer.micro_step_id]
    if optimizer.micro_step_id == 0:
        if not optimizer.offload_optimizer and any(param.requires_grad for param in left_out):
            took_effect(__name__, "an unused parameter got a zero gradient (unpatched: an earlier step's)")
        for param in left_out:
            buffers[param.ds_id].zero_()
            del filled[param.ds_id]
    at_boundary = optimizer.is_gradient_accumulation_boundary
    if not (optimizer.offload_optimizer and (at_boundary() if callable(at_boundary) else at_boundary)):
        return
    handed = optimizer.__dict__.get("_dsfix_handed", {})  # those whose offloaded gradients are not zero
    for param in {**handed, **{param.ds_id: param for param in left_out}}.values():
        if written.get(param.ds_id) != optimizer.micro_step_id:
            _hand_over(optimizer, param, buffers[param.ds_id], param.ds_id in written)
    optimizer._dsfix_handed = dict(filled)


def _hand_over(optimizer: Any, param: Any, gradient: Any, has_norm: bool) -> None:
    group, offset, _ = optimizer.grad_position[optimizer.get_param_id(param)]
    if optimizer._swappable_optimizer_subgroup(group):
        return
    took_effect(__name__, "an unused parameter's offloaded gradient was renewed (unpatched: an old one is used)")
    optimizer.fp32_partitioned_groups_flat[group].grad.narrow(0, offset, gradient.numel()).copy_(gradient)
    if has_norm:
        norm = optimizer._constant_buffered_norm2(gradient.to(param.device))
        optimizer.norm_for_param_grads[optimizer.get_param_id(param)] = norm
    else:  # zeros; a norm that is there is that of a gradient which the script set and the copy has overwritten
        optimizer.norm_for_param_grads.pop(optimizer.get_param_id(param), None)


PATCH = Patch(
    title="ZeRO-3: parameters unused in a step are updated with a stale gradient",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0"},
    changes=(
        Edit(
            f"{_OPTIMIZER}.partition_grads",
            after="buffers.append(grad_buffer)",
            code="self.__dict__.setdefault('_dsfix_written', {})[param.ds_id] = self.micro_step_id\n"
            "self.__dict__.setdefault('_dsfix_filled', {})[param.ds_id] = param",
        ),
        Edit(
            f"{_OPTIMIZER}.independent_gradient_partition_epilogue",
            before="if not self.offload_optimizer:\n    ...",
            code="renew(self, self.__param_id_to_grad_partition)",
            uses=(renew,),
        ),
        Edit(f"{_OPTIMIZER}.zero_grad", after="self.micro_step_id = 0", code=_BEGIN),
        Edit(f"{_OPTIMIZER}._pre_step", after="self.micro_step_id = 0", code=_BEGIN),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/1453": "introduced",
    },
    present=(
        # overwritten by the parameters that the first micro-batch reaches, and used for all
        Source(
            f"{_OPTIMIZER}.partition_grads",
            "if self.micro_step_id == 0:\n    ...\n"
            "elif get_accelerator().on_accelerator(grad_buffer):\n    ...\nelse:\n    ...",
        ),
        Source(
            f"{_OPTIMIZER}.independent_gradient_partition_epilogue",
            """
self.averaged_gradients[i] = [
    self.__param_id_to_grad_partition[param.ds_id]
    if param.requires_grad else torch.zeros_like(param.ds_tensor) for param in sub_group
]
""",
        ),
    ),
)

_LEARNING_RATE = 0.1


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    # the second step does not use the branch
    steps = [[(*lab.models.regression_batch(rank=0, step=step), step == 0)] for step in range(2)]
    model = lab.models.Branches()
    once = lab.reference.train(model, steps[:1], model.loss, "SGD", lr=_LEARNING_RATE).parameters
    model = lab.models.Branches()
    right = lab.reference.train(model, steps, model.loss, "SGD", lr=_LEARNING_RATE).parameters
    # SGD repeats the update of the first step
    initial = dict(lab.models.Branches().named_parameters())
    unused = {n: p for n, p in once.items() if n.startswith("second.")}
    repeated = {**right, **{n: 2 * p - initial[n].detach() for n, p in unused.items()}}

    model = lab.models.Branches()
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
    return lab.reference.compare(
        lab.parameters(engine),
        right,
        {"those with the previous update of the branch repeated": repeated},
        after="after a step that does not use a branch",
    )
