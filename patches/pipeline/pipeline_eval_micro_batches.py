"""PipelineEngine.eval_batch(num_micro_batches=n): another number of micro-batches is evaluated, and the loss is wrong.

Why: through 0.15.1 `eval_batch` runs `gradient_accumulation_steps` micro-batches whatever `num_micro_batches` says, but
    divides the sum of their losses by `num_micro_batches`: with 8 and 2 the loss is four times too large. It also takes
    8 batches from the iterator instead of 2, or fewer than it was given. Nothing fails.
How: `eval_batch` runs the number of micro-batches that it was called with, as in upstream's fix. Without the argument
    nothing changes.
Changes: the loss and the logits of `eval_batch(num_micro_batches=n)`, and how many batches it takes from the iterator.
    Parameters and checkpoints do not change.
Workaround: Scripts evaluate as many micro-batches as they train with, or set `engine.micro_batches` for the evaluation.
    You can keep it. A script that multiplies the loss by `num_micro_batches / gradient_accumulation_steps` has to stop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_EVAL = "deepspeed.runtime.pipe.engine:PipelineEngine.eval_batch"

PATCH = Patch(
    title="PipelineEngine.eval_batch(num_micro_batches=n) does not evaluate n micro-batches: wrong loss",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.13.0,<0.15.2"},
    changes=(
        Edit(
            _EVAL,
            replace="schedule.InferenceSchedule("
            "micro_batches=self.micro_batches, stages=self.num_stages, stage_id=self.stage_id)",
            code="schedule.InferenceSchedule("
            "micro_batches=micro_batches, stages=self.num_stages, stage_id=self.stage_id)",
            effect="the requested number of micro-batches was evaluated, not the training number",
            when="micro_batches != self.micro_batches",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/6484": "fixed in 0.15.2",
    },
    fixed_in="0.15.2",
    present=(
        Source(_EVAL, "self.micro_batches if num_micro_batches is None else num_micro_batches"),
        # not corrected in another place
        Source(_EVAL, "self._reduce_outputs(self.fwd_outputs, reduce=reduce_output, micro_batches=micro_batches)"),
    ),
    ranks=2,
    device="cpu",
)

_TRAINING, _EVALUATION = 4, (2, 6)


def reproduce(lab: Lab) -> str:
    import math

    lab.require_ranks(2)
    torch = lab.torch
    loss = torch.nn.functional.mse_loss
    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(max(_EVALUATION))]
    model: Any = lab.models.MLP(depth=3)
    with torch.no_grad():
        losses = [float(model.loss(*batch)) for batch in batches]
    module = lab.deepspeed.pipe.PipelineModule(
        layers=[*model.blocks, model.head], num_stages=2, loss_fn=loss, partition_method="uniform"
    )
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "gradient_accumulation_steps": _TRAINING,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    }
    engine = lab.initialize(module, config, model_parameters=list(module.parameters()))
    for number in _EVALUATION:
        source = iter(batches)
        try:
            seen = float(engine.eval_batch(source, num_micro_batches=number))
        except TypeError as error:
            if "num_micro_batches" in str(error):
                raise CannotTell(f"deepspeed {lab.deepspeed.__version__} has no num_micro_batches") from error
            raise
        taken = len(batches) - len(list(source))
        right, wrong = sum(losses[:number]) / number, sum(losses[:_TRAINING]) / number
        if taken == _TRAINING and math.isclose(seen, wrong, rel_tol=1e-5):
            raise BugPresent(
                f"eval_batch(num_micro_batches={number}) ran {taken} of them; loss {seen:.4f}, not {right:.4f}"
            )
        if taken != number or not math.isclose(seen, right, rel_tol=1e-5):
            raise AssertionError(f"{number} micro-batches: {taken} were run, loss {seen:.4f}, not {right:.4f}")
    return f"eval_batch ran {' and '.join(map(str, _EVALUATION))} micro-batches; the losses match plain PyTorch"
