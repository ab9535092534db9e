"""Random-LTD: the first sequence lengths are below min_value (0 for a minimum of 8 in steps of 16).

Why: the schedule `fixed_linear` rounds the length down to a multiple of seq_per_step, also below the minimum: layers
    that drop tokens get fewer than the requested minimum, or none.
How: the result is at least the first multiple of seq_per_step that is not below min_value, but at most max_value, as in
    the curriculum's schedule since 0.19.7. Where min_value is a multiple of seq_per_step nothing changes.
Changes: jobs whose min_value is not a multiple of seq_per_step: their first steps. A checkpoint written without the
    patch can be resumed.
Workaround: The config has a min_value that is a multiple of seq_per_step. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.job import Job
    from dsfix.lab import Lab

_SCHEDULE = "deepspeed.runtime.data_pipeline.data_routing.scheduler:BaseScheduler.__fixed_root_get_value"
_ROUNDED = "next_seq -= (next_seq % s_state[RANDOM_LTD_INCREASE_STEP])"


def _met(job: Job) -> bool:
    schedule = job.block("data_efficiency", "data_routing", "random_ltd", "random_ltd_schedule")
    options = schedule.get("schedule_config")
    step, least = options.get("seq_per_step") if isinstance(options, dict) else 0, schedule.get("min_value")
    return isinstance(step, int) and isinstance(least, int) and step > 0 and least % step != 0


PATCH = Patch(
    title="Random-LTD: the first sequence lengths are rounded down below min_value (8 to 0 in steps of 16)",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0"},
    changes=(
        Edit(
            _SCHEDULE,
            after=_ROUNDED,
            code="next_seq = max(next_seq, -(-self.state[RANDOM_LTD_MIN_VALUE] // s_state[RANDOM_LTD_INCREASE_STEP])"
            " * s_state[RANDOM_LTD_INCREASE_STEP])",
            effect="the sequence length was not rounded down below min_value",
            when="next_seq < self.state[RANDOM_LTD_MIN_VALUE]",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/2585": "introduced",
        "https://github.com/deepspeedai/DeepSpeed/pull/8334": "related: the curriculum's schedule, fixed in 0.19.7",
        "https://github.com/deepspeedai/DeepSpeed/pull/8529": "proposed fix",
    },
    present=(Source(_SCHEDULE, _ROUNDED),),
    config=_met,
)

_LEAST, _MOST, _STEP, _TOTAL = 8, 48, 16, 8


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    model = torch.nn.Linear(1, 1)
    schedule = {
        "min_value": _LEAST,
        "max_value": _MOST,
        "schedule_type": "fixed_linear",
        "schedule_config": {"require_steps": _TOTAL, "seq_per_step": _STEP},
    }
    random_ltd = {
        "enabled": True,
        "total_layer_num": 2,
        "random_ltd_layer_num": 1,
        "random_ltd_layer_id": [0],
        "model_mask_name": None,
        "model_type": "decoder",
        "hidden_state_order": "batch_seq_dim",
        "random_ltd_schedule": schedule,
    }
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "data_efficiency": {"enabled": True, "data_routing": {"enabled": True, "random_ltd": random_ltd}},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    seen: list[Any] = []  # the layers that drop tokens need a kernel, and read this
    model.register_forward_pre_hook(lambda *_: seen.append(engine.random_ltd_scheduler.get_current_seq()))
    for _ in range(_TOTAL + 1):
        engine.backward(engine(torch.ones(1, _MOST, 1, device=lab.device)).sum())
        engine.step()
    exact = [_LEAST + (_MOST - _LEAST) * min(step / _TOTAL, 1) for step in range(_TOTAL + 1)]
    wrong = [min(int(length // _STEP * _STEP), _MOST) for length in exact]
    right = [max(length, _STEP) for length in wrong]
    assert 0 in wrong, wrong
    if seen == wrong:
        raise BugPresent(f"the lengths of the steps are {seen}, with a minimum of {_LEAST}")
    assert seen == right, seen
    return f"the lengths of the steps are {seen}, multiples of {_STEP} from the minimum of {_LEAST} on"
