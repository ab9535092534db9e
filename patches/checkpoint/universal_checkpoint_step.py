"""ZeRO-1/2 or bf16: after loading a universal checkpoint, Adam's step count is lost or one too high.

Why: the conversion to a universal checkpoint leaves out the optimizer's count of steps. Through 0.12.2 it stays at 0
    after the load: with the moments of many steps the first updates are up to ten times too large (betas 0.9 and
    0.999). From 0.12.3 on it is the script's own `iteration` plus one: as without an interruption if the optimizer made
    an extra step before training (zero_step_at_initialization), but one too high for the moments that are loaded. There
    is no error. Pipelines and jobs with an `mpu` can load such checkpoints.
How: after the load the count is the engine's, which the checkpoint contains: its steps minus those that fp16 skipped.
    0.13.2 to 0.14.0 load no universal checkpoint into an optimizer that has made no step.
Changes: jobs that resume from a universal checkpoint make the same updates as without the interruption. The universal
    checkpoint is correct and can be loaded again; what was saved since a wrong load keeps its wrong count.
Workaround: Scripts set `step` in the optimizer's states after the load. You can keep it. Code that subtracts 1 from it
    must be removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import Edit, Patch, Severity, Source
from dsfix.process.effects import ran, took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_LOAD = "deepspeed.runtime.engine:DeepSpeedEngine.load_checkpoint"


def restore_step(engine: Any) -> None:
    """Gives the optimizer of an engine that has loaded a checkpoint the engine's count of steps."""
    optimizer = engine.optimizer.optimizer
    count = engine.global_steps - engine.skipped_steps
    for counter in (*optimizer.param_groups, *optimizer.state.values()):
        if not isinstance(counter, dict):
            continue  # a client's optimizer may keep what it likes
        if hasattr(counter.get("step"), "fill_"):
            ran(__name__)
            counter["step"].fill_(count)
        elif "step" in counter:
            if isinstance(counter["step"], int) and counter["step"] != count:
                took_effect(__name__, "Adam's step count was set to %s (unpatched: %s)", count, counter["step"])
            counter["step"] = count


PATCH = Patch(
    title="ZeRO-1/2 or bf16: after loading a universal checkpoint, Adam's step count is lost or one too high",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.13.2"},
    changes=(
        Edit(
            _LOAD,
            before="return load_path, client_states",
            code="if self.load_universal_checkpoint() and load_zero_checkpoint:\n"
            "    if load_optimizer_states and not load_module_only:\n"
            "        restore_step(self)",
            uses=(restore_step,),
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/4588": "fixed in 0.12.3, but for one step",
        "https://github.com/deepspeedai/DeepSpeed/pull/5104": "since 0.13.2 the load fails before",
        "https://github.com/deepspeedai/DeepSpeed/pull/5263": "the load fixed in 0.14.1",
        "https://github.com/deepspeedai/DeepSpeed/pull/5289": "fixed in 0.14.1",
    },
    fixed_in="0.13.2",
    present=(
        # the state is there before the load; later it is allocated by the first step
        Source(
            "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.initialize_optimizer_states",
            "self.optimizer.step()",
        ),
    ),
    fixed=(
        Source("deepspeed.runtime.bf16_optimizer:BF16_Optimizer.step", "self._lazy_init_hp_params_optimizer_state()"),
    ),
    config=lambda job: job.stage in (1, 2) and job.get("checkpoint", "load_universal") is True,
)

_STEPS, _SAVED = 5, 3
_OPTIONS = {"lr": 0.01, "weight_decay": 0.0}


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    from ._checkpoints import resume_pipeline

    nn, mse_loss = torch.nn, torch.nn.functional.mse_loss
    given = [lab.models.regression_batch(rank=0, step=step) for step in range(_STEPS)]
    batches = [(inputs[:, :8], inputs[:, :2] * targets) for inputs, targets in given]

    def layers(seed: int) -> Any:
        torch.manual_seed(seed)
        return [nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)]

    def plain(resumed_at: int) -> dict[str, Any]:
        model = nn.Sequential(*layers(0))
        optimizer = torch.optim.AdamW(model.parameters(), **_OPTIONS)
        for number, (inputs, targets) in enumerate(batches):
            if number == _SAVED:
                for state in optimizer.state.values():
                    state["step"].fill_(resumed_at)
            optimizer.zero_grad()
            mse_loss(model(inputs), targets).backward()
            optimizer.step()
        return {str(number): each.detach() for number, each in enumerate(model.parameters())}

    engine = resume_pipeline(lab, layers(0), batches[:_SAVED], layers(1), _OPTIONS)
    for batch in batches[_SAVED:]:
        engine.train_batch(iter([batch]))
    return lab.reference.compare(
        {str(number): each for number, each in enumerate(lab.parameters(engine).values())},
        plain(_SAVED),
        {"those of a step count that is lost": plain(0), "those of a step count one too high": plain(_SAVED + 1)},
        after=f"{_STEPS - _SAVED} steps after the load of step {_SAVED}",
    )
