"""ZeRO-3: only the last of several backward passes after one forward pass is used.

Why: ZeRO-3 copies a gradient into its buffer in the first micro-batch of a step and adds it in later ones. Through
    0.18.4 the end of a backward pass counted micro-batches; since 0.18.5 the next forward pass does. A second backward
    pass before it (two losses of one forward pass, each with its own `backward`) copies again: the gradient of the
    first loss is lost, for each parameter that both reach. Nothing fails. With gradient accumulation only the first
    micro-batch of each step is affected.
How: adds for the parameters that have had a gradient since the last forward pass, `zero_grad` or step. A gradient that
    the script discards before the second backward pass stays discarded: `torch.nn.Parameter.grad` is a property
    meanwhile that records it; a script that reads or sets `.grad` there may or may not discard, and loses the first
    gradient as without the patch, with one warning. SuperOffload and ZenFlow are not covered.
Changes: with more than one `backward` per forward pass, gradients become the sum, as in PyTorch and through 0.18.4;
    with one they are bit-identical. A checkpoint written without the patch loads; it was trained only on the last loss.
Workaround: Scripts add up the losses and call `backward` once. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import Edit, Patch, Severity, Source

from .._shared import tell_of_doubt, unwatch, watch

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OPTIMIZER = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3"


def forget(optimizer: Any) -> None:
    """The next gradient of each parameter is the first again."""
    optimizer._dsfix_reduced = set()
    unwatch(optimizer)


def begin(optimizer: Any) -> set[int]:
    """The parameters whose gradients have been reduced since the last forward pass, and not discarded by the script."""
    reduced: set[int] = optimizer.__dict__.setdefault("_dsfix_reduced", set())
    discards = unwatch(optimizer)
    if optimizer.micro_step_id == 0 and discards.doubtful & reduced:
        tell_of_doubt("zero3_two_losses_one_forward")
    reduced -= discards.certain | discards.doubtful
    return reduced


PATCH = Patch(
    title="ZeRO-3: only the last of several backward passes after one forward pass is used",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.18.5"},
    changes=(
        Edit(f"{_OPTIMIZER}.partition_grads", before="buffers = []", code="reduced = begin(self)", uses=(begin,)),
        Edit(
            f"{_OPTIMIZER}.partition_grads",
            replace="self.micro_step_id == 0",
            code="self.micro_step_id == 0 and id(param) not in reduced",
        ),
        Edit(
            f"{_OPTIMIZER}.partition_grads",
            before="if self.offload_optimizer:\n    ...",
            code="reduced.add(id(param))",
            effect="gradients of several backward passes were summed (unpatched: only the last are used)",
            when="self.micro_step_id == 0 and id(param) in reduced",
        ),
        Edit(
            f"{_OPTIMIZER}.independent_gradient_partition_epilogue",
            after="self._epilogue_ran_this_backward = True",
            code="watch(self)",
            uses=(watch,),
        ),
        Edit(
            f"{_OPTIMIZER}.clear_backward_seen_flag",
            before="super().clear_backward_seen_flag()",
            code="forget(self)",
            uses=(forget,),
        ),
        Edit(f"{_OPTIMIZER}.zero_grad", after="self.micro_step_id = 0", code="forget(self)", uses=(forget,)),
        Edit(f"{_OPTIMIZER}._pre_step", after="self.micro_step_id = 0", code="forget(self)", uses=(forget,)),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7780": "introduced in 0.18.5",
        "https://github.com/deepspeedai/DeepSpeed/pull/8135": "related: proposed fix for several losses",
    },
    present=(
        Source(f"{_OPTIMIZER}.independent_gradient_partition_epilogue", "self._epilogue_ran_this_backward = True"),
    ),
)

_LEARNING_RATE = 0.1
_STEPS = 2


def reproduce(lab: Lab) -> str:
    torch = lab.torch

    class Pair(torch.nn.Module):  # type: ignore[misc,name-defined]
        """Two graphs from one forward pass; no graph has to be retained."""

        def __init__(self) -> None:
            super().__init__()
            self.net = lab.models.MLP()

        def forward(self, left: Any, right: Any) -> Any:
            return self.net(left), self.net(right)

    def losses(model: Any, left: Any, left_targets: Any, right: Any, right_targets: Any) -> tuple[Any, Any]:
        left, right = model(left, right)
        return torch.nn.functional.mse_loss(left, left_targets), torch.nn.functional.l1_loss(right, right_targets)

    batches = [
        (*lab.models.regression_batch(rank=0, step=step), *lab.models.regression_batch(rank=1, step=step))
        for step in range(_STEPS)
    ]
    steps = [[batch] for batch in batches]
    model = Pair()
    right = lab.reference.train(model, steps, lambda *batch: sum(losses(model, *batch)), "SGD", lr=_LEARNING_RATE)
    model = Pair()
    last_only = lab.reference.train(model, steps, lambda *batch: losses(model, *batch)[1], "SGD", lr=_LEARNING_RATE)

    model = Pair()
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": 3},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for batch in batches:
        for loss in losses(engine, *(tensor.to(lab.device) for tensor in batch)):
            engine.backward(loss)
        engine.step()
    return lab.reference.compare(
        lab.parameters(engine),
        right.parameters,
        {"those of the second loss alone": last_only.parameters},
        after=f"after {_STEPS} steps of two losses",
    )
