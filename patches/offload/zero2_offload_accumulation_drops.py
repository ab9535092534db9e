"""ZeRO-2 with optimizer offload and gradient accumulation: only the first and the last micro-batch of a step are used.

Why: 0.15.2 to 0.18.9 add the sum kept on the CPU for the step to each micro-batch's gradient, but keep the result only
    for the first micro-batch. With `gradient_accumulation_steps` 3 or more, those between the first and the last are
    lost: a step uses two gradients, divided by the number of all. Nothing fails; the gradient norm is too small.
    ZeRO-1 reduces once per step and is not affected.
How: the sum is kept again, up to the accumulation boundary, as before 0.15.2. Upstream keeps it at the boundary too,
    which costs another copy and, with ZeRO-1 through 0.16.4, would be added to the next step.
Changes: with 3 accumulation steps or more (n), gradients become the mean over all micro-batches, up to n / 2 times as
    large, so that clipping may set in. A checkpoint written without the patch is intact, but its Adam moments are too
    small: warm the learning rate up again, or load only the weights.
Workaround: Scripts add up the losses of the micro-batches and call `backward` once, with `gradient_accumulation_steps`
    1. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ACCUMULATE = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.async_accumulate_grad_in_cpu_via_gpu"

PATCH = Patch(
    title="ZeRO-2 + optimizer offload + gradient accumulation: only the first and the last micro-batch are used",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.15.2,<0.19.0"},
    changes=(
        Edit(
            _ACCUMULATE,
            after="accumulate_gradients()",
            # at the boundary the gradient goes straight to the optimizer
            code="if not self.is_gradient_accumulation_boundary:\n    copy_gradients_to_cpu()",
            effect="all micro-batches were summed (unpatched: only the first and the last are used)",
            when="not self.is_gradient_accumulation_boundary",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/6550": "introduced in 0.15.2",
        "https://github.com/deepspeedai/DeepSpeed/pull/7967": "fixed in 0.19.0",
    },
    fixed_in="0.19.0",
    present=(
        Source(
            _ACCUMULATE,
            "if self.micro_step_id > 0:\n    accumulate_gradients()\nelse:\n    copy_gradients_to_cpu()",
        ),
    ),
    fixed=(
        Source(_ACCUMULATE, "if self.micro_step_id > 0:\n    accumulate_gradients()\ncopy_gradients_to_cpu()"),
        # through 0.15.1
        Source(_ACCUMULATE, "if not self.is_gradient_accumulation_boundary:\n    copy_gradients_to_cpu()"),
    ),
    config=lambda job: job.stage == 2 and job.offloads_optimizer and job.accumulates(3),
)

_LEARNING_RATE = 0.1
_MICRO_BATCHES = 4  # the first, two in the middle, the last
_STEPS = 2  # the second shows that nothing remains of the first


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(_STEPS * _MICRO_BATCHES)]
    steps = [batches[first : first + _MICRO_BATCHES] for first in range(0, len(batches), _MICRO_BATCHES)]
    model = lab.models.MLP()
    right = lab.reference.train(model, steps, model.loss, "SGD", lr=_LEARNING_RATE)
    model = lab.models.MLP()
    ends = [[step[0], step[-1]] for step in steps]
    ends_only = lab.reference.train(model, ends, model.loss, "SGD", lr=_LEARNING_RATE * 2 / _MICRO_BATCHES)

    model = lab.models.MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "gradient_accumulation_steps": _MICRO_BATCHES,
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for inputs, targets in batches:
        engine.backward(torch.nn.functional.mse_loss(engine(inputs.to(lab.device)), targets.to(lab.device)))
        engine.step()
    return lab.reference.compare(
        lab.parameters(engine),
        right.parameters,
        {"those of each step's first and last micro-batch": ends_only.parameters},
        after=f"after {_STEPS} steps of {_MICRO_BATCHES} micro-batches",
    )
