"""Curriculum learning: the first difficulties are below min_difficulty (0 for a minimum of 8 in steps of 16).

Why: the difficulty of the schedules `fixed_linear` and `fixed_root` is rounded down to a multiple of difficulty_step,
    also below the minimum: sequences are truncated to fewer tokens than the requested minimum, or to none, and the data
    sampler looks for samples that do not exist.
How: the result is at least the first multiple of difficulty_step that is not below min_difficulty, as in 0.19.7 and
    later, but not above max_difficulty. Where min_difficulty is a multiple of difficulty_step nothing changes.
Changes: jobs whose min_difficulty is not a multiple of difficulty_step: their first steps. A checkpoint written
    without the patch can be resumed.
Workaround: The config sets min_difficulty to a multiple of difficulty_step. You can keep it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.job import Job
    from dsfix.lab import Lab

_MODULE = "deepspeed.runtime.data_pipeline.curriculum_scheduler"
_SCHEDULE = f"{_MODULE}:CurriculumScheduler.__fixed_root_get_difficulty"
_ROUNDED = "next_difficulty -= (next_difficulty % s_state[CURRICULUM_LEARNING_SCHEDULE_DIFFICULTY_STEP])"


def _begins_below(curriculum: Mapping[str, Any]) -> bool:
    schedule = curriculum.get("schedule_config")
    step, least = schedule.get("difficulty_step") if isinstance(schedule, dict) else 0, curriculum.get("min_difficulty")
    rounds = curriculum.get("schedule_type") in ("fixed_linear", "fixed_root")
    return rounds and isinstance(step, int) and isinstance(least, int) and step > 0 and least % step != 0


def _met(job: Job) -> bool:
    """Whether the job's own schedule, or one of its data sampler's metrics, begins below its minimum."""
    of_sampler = job.block("data_efficiency", "data_sampling", "curriculum_learning")
    metrics = of_sampler.get("curriculum_metrics") if of_sampler.get("enabled") is True else None
    curricula = [*metrics.values()] if isinstance(metrics, dict) else []
    if job.get("curriculum_learning", "enabled") is True:
        curricula.append(job.block("curriculum_learning"))
    return any(_begins_below(each) for each in curricula if isinstance(each, dict))


PATCH = Patch(
    title="Curriculum learning: the first difficulties are rounded down below min_difficulty (8 to 0 in steps of 16)",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.19.7"},
    changes=(
        Edit(
            _SCHEDULE,
            after=_ROUNDED,
            code="next_difficulty = max(next_difficulty, -(-self.state[CURRICULUM_LEARNING_MIN_DIFFICULTY]"
            " // s_state[CURRICULUM_LEARNING_SCHEDULE_DIFFICULTY_STEP])"
            " * s_state[CURRICULUM_LEARNING_SCHEDULE_DIFFICULTY_STEP])",
            effect="the difficulty was not rounded down below min_difficulty",
            when="next_difficulty < self.state[CURRICULUM_LEARNING_MIN_DIFFICULTY]",
        ),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/8334": "fixed in 0.19.7"},
    fixed_in="0.19.7",
    fixed=(Source(_SCHEDULE, "step = s_state[CURRICULUM_LEARNING_SCHEDULE_DIFFICULTY_STEP]"),),
    config=_met,
)

_LEAST, _MOST, _STEP, _TOTAL = 8, 48, 16, 8


def reproduce(lab: Lab) -> str:
    from packaging.version import Version

    if Version(lab.deepspeed.__version__) >= Version("0.19.8"):
        raise CannotTell("DeepSpeed refuses the top-level curriculum_learning since 0.19.8")
    torch = lab.torch

    class Measuring(torch.nn.Module):  # type: ignore[misc,name-defined]
        """A model that truncates its inputs to the difficulty that the engine hands it, as Megatron's does."""

        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(1, 1)
            self.seen: list[int] = []

        def forward(self, x: Any, curriculum_seqlen: int) -> Any:
            self.seen.append(int(curriculum_seqlen))
            return self.linear(x[:, :curriculum_seqlen]).sum()

    model = Measuring()
    schedule = {"total_curriculum_step": _TOTAL, "difficulty_step": _STEP}
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "curriculum_learning": {
            "enabled": True,
            "curriculum_type": "seqlen",
            "min_difficulty": _LEAST,
            "max_difficulty": _MOST,
            "schedule_type": "fixed_linear",
            "schedule_config": schedule,
        },
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for _ in range(_TOTAL + 1):
        engine.backward(engine(torch.ones(1, _MOST, 1, device=lab.device)))
        engine.step()
    exact = [_LEAST + (_MOST - _LEAST) * min(step / _TOTAL, 1) for step in range(1, _TOTAL + 2)]
    wrong = [min(int(length // _STEP * _STEP), _MOST) for length in exact]
    right = [max(length, _STEP) for length in wrong]
    assert 0 in wrong, wrong
    if model.seen == wrong:
        raise BugPresent(f"the lengths of the steps are {model.seen}, with a minimum of {_LEAST}")
    assert model.seen == right, model.seen
    return f"the lengths of the steps are {model.seen}, multiples of {_STEP} from the minimum of {_LEAST} on"
