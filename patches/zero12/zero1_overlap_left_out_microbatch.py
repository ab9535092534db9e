"""ZeRO-1 with overlap_comm: gradients of parameters unused in the last micro-batch are not averaged across ranks.

Why: with gradient accumulation, `overlap_comm` reduces each parameter when the last micro-batch's backward pass reaches
    it. A parameter that only earlier micro-batches reach (another task's head, a branch, a dropped layer) is never
    reduced: each rank steps its partition with its own gradient, or, where the parameter's partition belongs to another
    rank, its gradient is lost. With optimizer offload it is not even passed to the optimizer, but added to the next
    step's. Nothing fails. Without `overlap_comm`, which ZeRO-1 ignored before 0.13.0, all existing gradients are
    reduced.
How: before the step, reduces what the hooks have not reduced. All ranks know which parameters those are, as the last
    micro-batch's reductions would not match otherwise; which of them an earlier micro-batch has used, the ranks
    exchange as numbers appended to the last bucket. A rank that has not used such a parameter contributes zeros.
Changes: steps whose last micro-batch leaves out parameters that an earlier one used; others only by rounding of the
    last bucket with more than two ranks. A checkpoint written without the patch loads; such parameters were trained on
    one rank's gradients. Not fixed: `no_sync`, several passes without a boundary, and ZenFlow.
Workaround: Scripts add what a micro-batch does not use to the output, multiplied by 0. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
_STAGE_1 = (
    "self.zero_optimization_stage() == ZeroStageEnum.optimizer_states and hasattr(self.optimizer, 'reduce_gradients')"
)


def reduce_left_out(engine: Any) -> None:
    """At the boundary: reduce the gradients that the hooks of the last backward pass have not reduced."""
    optimizer = engine.optimizer
    # the answers are the same on all ranks
    accumulates = engine.gradient_accumulation_steps() > 1 or engine._is_gradient_accumulation_boundary is not None
    if not accumulates or not getattr(optimizer, "overlap_comm", False) or getattr(optimizer, "zenflow", False):
        return
    hooked = _hooked(optimizer)
    left_out: dict[Any, list[tuple[int, Any]]] = {}
    number = 0
    for group, params in enumerate(optimizer.bit16_groups):
        for param in params:
            if number not in hooked and param.numel():
                left_out.setdefault(optimizer.real_dp_process_group[group], []).append((group, param))
            number += 1
    # experts last: other experts' ranks may have other unused parameters
    for process_group in sorted(left_out, key=lambda each: each is not optimizer.dp_process_group):
        _reduce(optimizer, process_group, left_out[process_group])


def _hooked(optimizer: Any) -> set[int]:
    """The indices of the parameters that the last backward pass has reduced, or put into a bucket."""
    buckets = optimizer.ipg_buckets.values() if hasattr(optimizer, "ipg_buckets") else ()
    waiting = [entry for bucket in buckets for entry in bucket.params] if buckets else optimizer.params_in_ipg_bucket
    reduced = {number for number, done in enumerate(optimizer.params_already_reduced) if done}
    return reduced.union(entry[-1] for entry in waiting)


def _reduce(optimizer: Any, process_group: Any, left_out: list[tuple[int, Any]]) -> None:
    import torch
    from deepspeed import comm as dist
    from deepspeed.accelerator import get_accelerator

    mine = [float(optimizer.get_gradient_for_reduction(param) is not None) for _, param in left_out]
    if dist.get_world_size(group=optimizer.dp_process_group) == 1 and not optimizer.cpu_offload:
        return  # already the average
    used = mine if dist.get_world_size(group=process_group) == 1 else _of_all(optimizer, process_group, mine)
    for (group, param), anywhere in zip(left_out, used):
        if not anywhere:
            continue
        took_effect(__name__, "gradients that only earlier micro-batches have were reduced (unpatched: not reduced)")
        if optimizer.get_gradient_for_reduction(param) is None:
            if optimizer.use_grad_accum_attribute:
                param.grad_accum = torch.zeros_like(param.data, dtype=optimizer.gradient_accumulation_dtype)
            else:
                param.grad = torch.zeros_like(param.data)
        if optimizer.reduction_stream is not None:  # it may still be reducing the bucket
            get_accelerator().current_stream().wait_stream(optimizer.reduction_stream)
        optimizer.reduce_ready_partitions_and_remove_grads(param, group)
    if process_group is not optimizer.dp_process_group:
        optimizer.reduce_ipg_grads()  # the next experts have other ranks


def _of_all(optimizer: Any, process_group: Any, mine: list[float]) -> list[float]:
    """The sums over the ranks, or a multiple of them."""
    import torch
    from deepspeed import comm as dist
    from deepspeed.accelerator import get_accelerator

    sums: Any = None
    whole = not optimizer.contiguous_gradients or (
        optimizer.reduce_scatter and optimizer.use_multi_rank_bucket_allreduce
    )
    if whole and process_group is optimizer.dp_process_group and not optimizer.has_moe_layers:
        allreduce = optimizer.allreduce_bucket

        def take_along(bucket: list[Any], *args: Any, **options: Any) -> Any:
            nonlocal sums
            if sums is not None:
                return allreduce(bucket, *args, **options)
            reduced = allreduce([*bucket, bucket[0].new_tensor(mine)], *args, **options)
            sums = reduced[-len(mine) :]
            return reduced[: -len(mine)]

        optimizer.allreduce_bucket = take_along
        try:
            optimizer.reduce_ipg_grads()  # the epilogue's
        finally:
            del optimizer.allreduce_bucket
        if optimizer.reduction_stream is not None:
            get_accelerator().current_stream().wait_stream(optimizer.reduction_stream)
    if sums is None:
        sums = torch.tensor(mine, device=get_accelerator().current_device_name())
        dist.all_reduce(sums, group=process_group)
    result: list[float] = sums.tolist()
    return result


PATCH = Patch(
    title="ZeRO-1 + overlap_comm: gradients of parameters unused in the last micro-batch are not averaged",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.13.0"},
    changes=(
        Edit(
            f"{_ENGINE}.allreduce_gradients",
            before=f"if {_STAGE_1}:\n    ...\nelse:\n    ...",
            code="reduce_left_out(self)",
            uses=(reduce_left_out,),
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/4887": "introduced in 0.13.0",
    },
    present=(
        Source(
            "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.reduce_gradients",
            "if not self.overlap_comm:\n    ...",
        ),
    ),
    # ZeRO-1 ignores overlap_comm
    fixed=(
        Source(
            f"{_ENGINE}._configure_zero_optimizer",
            "overlap_comm = False\nround_robin_gradients = False",
        ),
    ),
    ranks=2,
)

_LEARNING_RATE = 0.1
_STEPS = 2


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    torch = lab.torch
    batch = lab.models.regression_batch
    model = lab.models.Branches()
    config = {
        "train_micro_batch_size_per_gpu": len(batch(rank=0, step=0)[0]),
        "gradient_accumulation_steps": 2,
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": 1, "overlap_comm": True},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    steps = []
    for number in range(_STEPS):
        # the last micro-batch does not use the second branch
        micros = [(2 * number, True), (2 * number + 1, False)]
        steps.append([(*batch(rank, step=step), both) for rank in range(2) for step, both in micros])
        for inputs, targets, both in steps[-1][2 * lab.rank :][:2]:
            outputs = engine(inputs.to(lab.device), both)
            engine.backward(torch.nn.functional.mse_loss(outputs, targets.to(lab.device)))
            engine.step()
        model = lab.models.Branches()
        right = lab.reference.train(model, steps, model.loss, "SGD", lr=_LEARNING_RATE).parameters
        parameters = lab.parameters(engine)
        first, second = (
            lab.reference.largest_difference(_branch(parameters, name), _branch(right, name))
            for name in ("first", "second")
        )
        if number == 0 and first.relative < 1e-4 < second.relative:  # the next step carries the error everywhere
            raise BugPresent(f"the branch unused in the last micro-batch is not trained by both ranks: {second}")
        assert max(first.relative, second.relative) < 1e-4, f"after step {number} {first}, {second}"
    return (
        f"after {_STEPS} steps the branch unused in the last micro-batch matches plain PyTorch "
        f"within {second.relative:.1e}"
    )


def _branch(parameters: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in parameters.items() if key.startswith(f"{name}.")}
