"""ZeRO-1 with overlap_comm: a gradient that the last micro-batch adds nothing to is not averaged over the ranks.

Why: with gradient accumulation, `overlap_comm` reduces each parameter when the last micro-batch's backward pass reaches
    it. One that only earlier micro-batches reach (another task's head, a branch, a layer that is dropped) is never
    reduced: each rank steps its partition with its own gradient, or, where the parameter's partition is another rank's,
    its gradient is lost. With optimizer offload it is not even given to the optimizer, but added to the next step's.
    Nothing fails. Without `overlap_comm` all gradients there are get reduced.
How: before the step, what the hooks have not reduced is reduced.
Changes: only steps whose last micro-batch leaves out parameters that an earlier one uses, on all ranks alike; all
    others: bit for bit as before. A checkpoint written without the patch loads; such parameters were trained on the
    gradients of one rank.
Upstream: brought by https://github.com/deepspeedai/DeepSpeed/pull/4887 (0.13.0: `overlap_comm` is no longer ignored
    with ZeRO-1); not fixed in 0.19.8, and not known to be reported.
Retire: when DeepSpeed 0.19.8 is no longer supported here, if a release after it reduces such gradients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OPTIMIZER = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"


def reduce_left_out(optimizer: Any) -> None:
    """Reduce the gradients that the hooks of the last backward pass have not."""
    hooked = optimizer.__dict__.pop("_dsfix_reduced", set())
    if not optimizer.overlap_comm:
        return
    left_out = [
        (param, group)
        for group, params in enumerate(optimizer.bit16_groups)
        for param in params
        if id(param) not in hooked and optimizer.get_gradient_for_reduction(param) is not None
    ]
    if left_out and hooked:
        # a bucket of their own: ranks that disagree on what is left out fail as they would have
        optimizer.reduce_ipg_grads()
    for param, group in left_out:
        optimizer.reduce_ready_partitions_and_remove_grads(param, group)
    # of this loop: the next step may leave out the same
    optimizer.__dict__.pop("_dsfix_reduced", None)


PATCH = Patch(
    title="ZeRO-1 + overlap_comm: a gradient that the last micro-batch adds nothing to is not averaged over the ranks",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.13.0"},
    changes=(
        Edit(
            f"{_OPTIMIZER}.reduce_ready_partitions_and_remove_grads",
            before="self.reduce_independent_p_g_buckets_and_remove_grads(param, i)",
            code="if not self.partition_gradients:\n    self.__dict__.setdefault('_dsfix_reduced', set()).add(id(param))",  # noqa: E501
        ),
        Edit(
            f"{_OPTIMIZER}.reduce_gradients",
            after="if not self.overlap_comm:\n    ...",
            code=f"from {__name__} import reduce_left_out\nreduce_left_out(self)",
        ),
    ),
    symptom="",
    upstream=("https://github.com/deepspeedai/DeepSpeed/pull/4887",),
    fixed_in=None,
    # ZeRO-1 ignores overlap_comm
    fixed=(
        Source(
            "deepspeed.runtime.engine:DeepSpeedEngine._configure_zero_optimizer",
            "overlap_comm = False\nround_robin_gradients = False",
        ),
    ),
    ranks=2,
)

_LEARNING_RATE = 0.1
_STEPS = 2


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    lab.require_ranks(2)
    from dsfix.lab.models import Branches, regression_batch
    from dsfix.lab.reference import largest_difference, train

    model = Branches()
    config = {
        "train_micro_batch_size_per_gpu": len(regression_batch(rank=0, step=0)[0]),
        "gradient_accumulation_steps": 2,
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": 1, "overlap_comm": True},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    steps = []
    for number in range(_STEPS):
        # the last micro-batch leaves the second branch out
        micros = [(2 * number, True), (2 * number + 1, False)]
        steps.append([(*regression_batch(rank, step=step), both) for rank in range(2) for step, both in micros])
        for inputs, targets, both in steps[-1][2 * lab.rank :][:2]:
            outputs = engine(inputs.to(lab.device), both)
            engine.backward(torch.nn.functional.mse_loss(outputs, targets.to(lab.device)))
            engine.step()
        model = Branches()
        both_sides = lab.parameters(engine), train(model, steps, model.loss, "SGD", lr=_LEARNING_RATE).parameters
        first, second = (
            largest_difference(*({k: v for k, v in each.items() if k.startswith(part)} for each in both_sides))
            for part in ("first.", "second.")
        )
        if number == 0 and first.relative < 1e-4 < second.relative:  # from the next step on all goes wrong with it
            raise BugPresent(f"the branch that the last micro-batch left out is not trained by both ranks: {second}")
        assert max(first.relative, second.relative) < 1e-4, f"after step {number} {first}, {second}"
    return f"a branch that each of {_STEPS} last micro-batches left out is plain PyTorch's within {second.relative:.1e}"
