"""ZeRO-2 with gradient accumulation: only the last micro-batch of each step is used.

Why: 0.17.6 to 0.18.2 add a micro-batch's gradients to the previous ones where `averaged_gradients` is filled, but since
    0.17.6 that is filled only at the end of the accumulation. Until then each micro-batch replaces the previous one: a
    step uses the last one's gradient, divided by the number of all. Nothing fails; the gradient norm is silently wrong.
    ZeRO-1 and ZeRO-3 are not affected.
How: gradients are also added where `all_grad_tensors`, which holds the sum so far, is filled. A micro-batch that the
    script discards before the next one (`.grad = None`, any `zero_grad`) stays discarded: meanwhile,
    `torch.nn.Parameter.grad` is a property that records it. A script that reads or sets `.grad` there may or may not
    discard: the sum so far is lost as without the patch, with one warning on rank 0.
Changes: with n accumulation steps gradients become the mean over all micro-batches, up to n times as large, so that
    clipping may set in. A checkpoint written without the patch is intact, but its Adam moments are too small: warm the
    learning rate up again, or load only the weights.
Workaround: Scripts add up the losses of the micro-batches and call `backward` once, with `gradient_accumulation_steps`
    1. You can keep it.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from dsfix.patch import Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

from .._shared import tell_of_doubt, unwatch, watch

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OPTIMIZER = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"
_EPILOGUE = f"{_OPTIMIZER}.independent_gradient_partition_epilogue"


def begin(optimizer: Any) -> None:
    """A backward pass: what the script has discarded since the last one is taken out of the sum."""
    optimizer._dsfix_discards = discards = unwatch(optimizer)  # also for zero12_several_backwards_drop
    discarded = discards.certain | discards.doubtful
    if optimizer.is_gradient_accumulation_boundary and _kept(optimizer, discarded):
        took_effect(__name__, "all micro-batches were summed (unpatched: only the last is used)")
    if not discarded:
        return
    for group, total in optimizer.all_grad_tensors.items():
        for parameter, gradient in zip(optimizer.params_in_partition[group], total or ()):
            if id(parameter) in discarded:
                gradient.zero_()
    if discards.doubtful.intersection(map(id, itertools.chain.from_iterable(optimizer.bit16_groups))):
        tell_of_doubt("zero2_accumulation_drops_microbatches")


def _kept(optimizer: Any, discarded: set[int]) -> bool:
    """Whether earlier micro-batches of the step are in the sum."""
    return any(
        total and any(id(parameter) not in discarded for parameter in optimizer.params_in_partition[group])
        for group, total in optimizer.all_grad_tensors.items()
        if optimizer.averaged_gradients.get(group) is None
    )


def end(optimizer: Any) -> None:
    if any(total is not None for total in optimizer.all_grad_tensors.values()):
        watch(optimizer)


PATCH = Patch(
    title="ZeRO-2 + gradient accumulation: only the last micro-batch of each step is used",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.17.6,<0.18.3"},
    changes=(
        Edit(
            _EPILOGUE,
            replace="not i in self.averaged_gradients or self.averaged_gradients[i] is None",
            code="self.averaged_gradients.get(i) is None and self.all_grad_tensors.get(i) is None",
        ),
        Edit(_EPILOGUE, after='see_memory_usage("End ipg_epilogue")', code="end(self)", uses=(end,)),
        Edit(
            f"{_OPTIMIZER}.backward",
            before="if self.custom_loss_scaler:\n    ...\n"
            "elif self.torch_autocast_gradscaler:\n    ...\nelse:\n    ...",
            code="begin(self)",
            uses=(begin,),
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/7718": "reported",
        "https://github.com/huggingface/accelerate/issues/3877": "reported",
        "https://github.com/huggingface/trl/issues/4631": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/7509": "introduced in 0.17.6",
        "https://github.com/deepspeedai/DeepSpeed/pull/7665": "fixed in 0.18.3",
    },
    fixed_in="0.18.3",
    present=(Source(_EPILOGUE, "self.all_grad_tensors[i] = None"),),
    fixed=(Source(_EPILOGUE, "i not in self.all_grad_tensors or self.all_grad_tensors[i] is None"),),
    config=lambda job: job.stage == 2 and not job.offloads_optimizer and job.accumulates(),
)

_LEARNING_RATE = 0.1
_MICRO_BATCHES = 3  # two would not show whether those in the middle are used
_STEPS = 2  # the second shows that nothing remains of the first


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(_STEPS * _MICRO_BATCHES)]
    steps = [batches[first : first + _MICRO_BATCHES] for first in range(0, len(batches), _MICRO_BATCHES)]
    model = lab.models.MLP()
    right = lab.reference.train(model, steps, model.loss, "SGD", lr=_LEARNING_RATE)
    model = lab.models.MLP()
    last_only = lab.reference.train(
        model, [step[-1:] for step in steps], model.loss, "SGD", lr=_LEARNING_RATE / _MICRO_BATCHES
    )

    model = lab.models.MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "gradient_accumulation_steps": _MICRO_BATCHES,
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": 2},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for inputs, targets in batches:
        engine.backward(torch.nn.functional.mse_loss(engine(inputs.to(lab.device)), targets.to(lab.device)))
        engine.step()
    return lab.reference.compare(
        lab.parameters(engine),
        right.parameters,
        {"those of each step's last micro-batch alone": last_only.parameters},
        after=f"after {_STEPS} steps of {_MICRO_BATCHES} micro-batches",
    )
