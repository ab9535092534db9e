"""DualPipeV: eval_batch(num_micro_batches=n) fails unless n is the number of micro-batches of training.

Why: the schedule gives each micro-batch a slot per phase, and the slots of the second phase begin behind those of the
    first, at the number of micro-batches that are evaluated. `_phase1_buffer` has them begin at the number of training,
    `gradient_accumulation_steps`: labels and the last rank's activations are put into other slots than they are read
    from. The last rank fails, "'NoneType' object has no attribute 'clone'", while the others wait for it.
How: in an evaluation the slots begin at the number for which its schedule was made. Training is unchanged.
Workaround: Scripts evaluate as many micro-batches as they train with, or set `engine.micro_batches` for the evaluation.
    You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ENGINE = "deepspeed.runtime.pipe.dualpipev:DualPipeVEngine"
_MESSAGE = "'NoneType' object has no attribute 'clone'"


def micro_batches(engine: Any) -> int:
    """Of the schedule that runs. As in DeepSpeed, an evaluation is what runs without gradients."""
    import torch

    trained: int = engine.micro_batches
    return trained if torch.is_grad_enabled() else vars(engine).get("_dsfix_evaluated", trained)


PATCH = Patch(
    title="DualPipeV: eval_batch(num_micro_batches=n) fails, 'NoneType' object has no attribute 'clone'",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.19.8"},
    changes=(
        Edit(
            f"{_ENGINE}._inference_schedule",
            before="return schedule.DualPipeVSchedule(micro_batches=micro_batches, stages=self.num_stages, "
            "stage_id=self.stage_id, forward_only=True)",
            code="self._dsfix_evaluated = micro_batches",
            effect="another number of micro-batches was evaluated than is trained with (unpatched: AttributeError)",
            when="micro_batches != self.micro_batches",
        ),
        Edit(
            f"{_ENGINE}._phase1_buffer",
            replace="return buffer_id + self.micro_batches",
            code="return buffer_id + micro_batches(self)",
            uses=(micro_batches,),
        ),
    ),
    symptom=r"in _exec_forward_pass\n[\s\S]*'NoneType' object has no attribute 'clone'",
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/8576": "introduced in 0.19.8"},
    present=(
        Source("deepspeed.runtime.pipe.schedule:DualPipeVSchedule.num_pipe_buffers", "return 2 * self.micro_batches"),
    ),
    ranks=2,
    device="cpu",
)

_TRAINING, _EVALUATION = 5, (4, 5, 8)


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    torch = lab.torch
    deepspeed = lab.deepspeed
    if not hasattr(deepspeed.pipe, "DualPipeVModule"):
        raise CannotTell(f"deepspeed {deepspeed.__version__} has no DualPipeV")
    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(_TRAINING + max(_EVALUATION))]
    model: Any = lab.models.MLP(depth=3)
    reference = lab.models.MLP(depth=3)
    loss = torch.nn.functional.mse_loss
    module = deepspeed.pipe.DualPipeVModule(
        layers=[*model.blocks, model.head], num_stages=2, loss_fn=loss, partition_method="uniform"
    )
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "gradient_accumulation_steps": _TRAINING,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    }
    engine = lab.initialize(module, config, model_parameters=list(module.parameters()))
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for number in _EVALUATION:
        source = iter(batches)
        engine.train_batch(source)
        for batch in batches[:_TRAINING]:
            (reference.loss(*batch) / _TRAINING).backward()
        optimizer.step()
        optimizer.zero_grad()
        evaluated = batches[_TRAINING : _TRAINING + number]
        with torch.no_grad():
            right = float(sum(reference.loss(*batch) for batch in evaluated) / number)
        try:
            found = float(engine.eval_batch(source, num_micro_batches=number))
        except AttributeError as error:
            if _MESSAGE in str(error):
                raise BugPresent(f"{_TRAINING} micro-batches of training, {number} of evaluation: {error}") from error
            raise
        lab.reference.compare(
            {"loss": torch.tensor(found)}, {"loss": torch.tensor(right)}, after=f"{number} micro-batches:"
        )
    return f"trained with {_TRAINING} micro-batches, evaluations of {_EVALUATION} have plain PyTorch's losses"
