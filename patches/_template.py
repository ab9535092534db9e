"""TITLE, as a sentence: when, and what goes wrong.

Why: what the user sees, and which code of DeepSpeed causes it.
How: what the edit does, and what it costs.
Changes: where results were wrong: whose numbers change, and what resuming from a checkpoint written without the patch
    does. Leave this out for a bug that only crashes.
Workaround: What scripts do about the bug today. You can keep it. (It must stay right with the patch. If only another
    release or config helps: None in the script; DeepSpeed 0.14.3 helps.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_STEP = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3.step"

PATCH = Patch(
    title="one line: the configuration, what users see",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.14.1,<0.14.3"},
    changes=(
        Edit(
            _STEP,
            replace="scale = 1",
            code="scale = self.loss_scale",
            effect="gradients were divided by the loss scale",  # logged the first time
            when="self.loss_scale != 1",  # that this is true: only then does the result differ from unpatched DeepSpeed
        ),
    ),
    symptom=r"in step\n.*RuntimeError: ",  # a regular expression that matches the log; left out for a silent bug
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/1": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/2": "introduced",
        "https://github.com/deepspeedai/DeepSpeed/pull/3": "fixed in 0.14.3",
    },
    fixed_in="0.14.3",
    present=(Source(_STEP, "self.unscale(scale)"),),  # evidence of the bug, if the anchors do not suffice
    fixed=(Source(_STEP, "scale = self.loss_scale"),),  # evidence of the fix
    config=lambda job: job.stage == 3 and job.clips,  # whether the config triggers the bug
)

_STEPS, _LEARNING_RATE = 3, 0.1


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(_STEPS)]
    steps = [[batch] for batch in batches]

    model = lab.models.MLP()
    right = lab.reference.train(model, steps, model.loss, "SGD", lr=_LEARNING_RATE)
    model = lab.models.MLP()
    wrong = lab.reference.train(model, steps, model.loss, "SGD", lr=_LEARNING_RATE / 2)

    model = lab.models.MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": 3},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    # where older releases lack what the job uses: raise CannotTell(f"deepspeed {lab.deepspeed.__version__} has no …")
    for inputs, targets in batches:
        engine.backward(torch.nn.functional.mse_loss(engine(inputs.to(lab.device)), targets.to(lab.device)))
        engine.step()
    return lab.reference.compare(
        lab.parameters(engine),
        right.parameters,
        {"those of half the learning rate": wrong.parameters},
        after=f"after {_STEPS} steps",
    )
