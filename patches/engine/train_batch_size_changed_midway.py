"""After engine.set_train_batch_size in a running job, steps are made after too few micro-batches, or too many.

Why: whether a micro-batch is the last of its step is a question of the number of all micro-batches since the job began,
    modulo the new accumulation steps. Unless that number is a multiple of them at the change, the first step after it
    is made too early, of gradients that are divided by all of the new steps; every later one is shifted. With ZeRO-1 or
    ZeRO-2 and optimizer offload, an optimizer that was made for one micro-batch a step also keeps only the last.
How: micro-batches are counted from the last step before the change, however it was made; the optimizer gets the new
    number. A job whose count is a multiple, which may have set `engine.micro_steps` itself, goes on as it does today.
Changes: jobs that change the accumulation steps while they run: each step has as many micro-batches as were set. A
    checkpoint written without the patch can be resumed.
Workaround: Scripts change it after a multiple of the new accumulation steps, reset `engine.micro_steps`, or set each
    boundary with `set_gradient_accumulation_boundary`. All can stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
_BOUNDARY = f"{_ENGINE}.is_gradient_accumulation_boundary"
_COUNTED = "return (self.micro_steps + 1) % self.gradient_accumulation_steps() == 0"


def ends_step(engine: Any) -> bool:
    """Whether the current micro-batch is the last of its step."""
    steps, done = engine.gradient_accumulation_steps(), engine.micro_steps
    begun, before = engine.__dict__.get("_dsfix_step_begun", (0, steps))
    if done < begun:  # the script counts anew
        begun = 0
    if steps != before:
        begun = done if done % steps == 0 else done - (done - begun) % before
        tell_optimizer(engine)
    engine._dsfix_step_begun = begun, steps
    ends: bool = (done + 1 - begun) % steps == 0
    if ends != ((done + 1) % steps == 0):
        took_effect(__name__, "micro-batches were counted from the change of the accumulation steps")
    return ends


def tell_optimizer(engine: Any) -> None:
    """Give a ZeRO optimizer the new accumulation steps; one that was made for 1 keeps no sum on the CPU."""
    if hasattr(engine.optimizer, "gradient_accumulation_steps"):
        engine.optimizer.gradient_accumulation_steps = engine.gradient_accumulation_steps()


PATCH = Patch(
    title="engine.set_train_batch_size in a running job: steps after too few micro-batches",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0"},
    changes=(
        Edit(_BOUNDARY, replace=_COUNTED, code="return ends_step(self)", uses=(ends_step,)),
        Edit(  # boundaries may be set by hand
            f"{_ENGINE}.set_train_batch_size",
            after="self._config.gradient_accumulation_steps = new_gas",
            code="tell_optimizer(self)",
            uses=(tell_optimizer,),
        ),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/1310": "introduced"},
    present=(Source(f"{_ENGINE}.set_train_batch_size", "self._config.train_batch_size = train_batch_size"),),
)

_LEARNING_RATE = 0.1
_STEPS = (1, 1, 3, 3, 2)  # micro-batches of each


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(sum(_STEPS))]
    starts = [sum(_STEPS[:step]) for step in range(len(_STEPS))]
    steps = [batches[start : start + count] for start, count in zip(starts, _STEPS)]
    model = lab.models.MLP()
    expected = lab.reference.train(model, steps, model.loss, "SGD", lr=_LEARNING_RATE)

    def counted_from_the_beginning() -> dict[str, Any]:
        model = lab.models.MLP()
        optimizer = torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE)
        for number, (batch, count) in enumerate((batch, len(step)) for step in steps for batch in step):
            (model.loss(*batch) / count).backward()
            if (number + 1) % count == 0:
                optimizer.step()
                optimizer.zero_grad()
        return {name: parameter.detach() for name, parameter in model.named_parameters()}

    size = len(batches[0][0])
    config = {
        "train_micro_batch_size_per_gpu": size,
        "gradient_accumulation_steps": 1,
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": 2},
    }
    model = lab.models.MLP()
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for step in steps:
        if engine.gradient_accumulation_steps() != len(step):
            engine.set_train_batch_size(size * len(step))
        for inputs, targets in step:
            engine.backward(torch.nn.functional.mse_loss(engine(inputs.to(lab.device)), targets.to(lab.device)))
            engine.step()
    return lab.reference.compare(
        lab.parameters(engine),
        expected.parameters,
        {"those of micro-batches counted from the beginning": counted_from_the_beginning()},
        after="after steps of {} micro-batches".format(", ".join(map(str, _STEPS))),
    )
