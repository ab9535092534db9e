"""WarmupLR and WarmupDecayLR: the first step uses the optimizer's full learning rate.

Why: both set the learning rate when they are stepped, which the engine does after the optimizer's step, and not when
    they are created. The first step of training uses the optimizer's own `lr` instead of `warmup_min_lr`: the largest
    step of all, with fresh weights and moments, which a warm-up is meant to prevent. Nothing fails. WarmupCosineLR:
    warmup_cosine_first_step.
How: a new schedule (`last_batch_iteration` -1) sets `warmup_min_lr` when it is created, as upstream does; loading its
    state replaces that. If the rate is still set when another schedule or engine is made with the optimizer, or this
    one is gone, the groups get their own rates back; a schedule of PyTorch that took it for the optimizer's own gets
    that when this one is first stepped. A tensor is written into.
Changes: the first step has the learning rate `warmup_min_lr`, 0 by default; all others keep theirs. A checkpoint
    written without the patch continues as it would have; where the optimizer's rates are not loaded
    (`elastic_checkpoint`, `load_optimizer_states=False`), its first step has the schedule's.
Workaround: Scripts set the learning rate of the first step themselves. You can keep it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

from .._shared import correct_later_schedules, engine_begins, engine_ends, engine_has, give_back, set_first_rates

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
_SCHEDULE = "deepspeed.runtime.lr_schedules:WarmupLR"
_INIT = f"{_SCHEDULE}.__init__"
_EFFECT = "the first step had the warm-up's first learning rate, not the optimizer's own"
# the engine steps the schedule after the optimizer
_WHEN = (
    "self.last_batch_iteration == -1 and last_batch_iteration is None"
    f" and __import__({set_first_rates.__module__!r}, fromlist=['']).first_step_had_first_rates(self)"
)

PATCH = Patch(
    title="WarmupLR and WarmupDecayLR: the first step uses the optimizer's full learning rate",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.15.3"},
    changes=(
        Edit(
            _INIT,
            after="self.optimizer = get_torch_optimizer(optimizer)",
            code="give_back(self.optimizer)",
            uses=(give_back,),
        ),
        Edit(
            _INIT,
            after="self.last_batch_iteration = last_batch_iteration",
            code="if last_batch_iteration == -1:\n"
            "    set_first_rates(self, self.min_lrs)\n"
            "    self._last_lr = list(self.min_lrs)",
            uses=(set_first_rates,),
        ),
        Edit(
            f"{_SCHEDULE}.load_state_dict",
            after="self.last_batch_iteration = sd['last_batch_iteration']",
            code="if all(group.get('lr') == rate for group, rate in zip(self.optimizer.param_groups, self.min_lrs)):\n"
            "    self._last_lr = list(self.get_lr() if self.last_batch_iteration >= 0 else self.min_lrs)\n"
            "    set_first_rates(self, self._last_lr)",
            uses=(set_first_rates,),
        ),
        Edit(
            f"{_SCHEDULE}.step",
            before="if last_batch_iteration is None:\n    ...",
            code="if self.last_batch_iteration == -1:\n    correct_later_schedules(self)",
            uses=(correct_later_schedules,),
            effect=_EFFECT,
            when=_WHEN,
        ),
        Edit(
            f"{_ENGINE}._configure_optimizer",
            before="self._check_for_duplicates(basic_optimizer)",
            code="engine_begins(self, basic_optimizer)",
            uses=(engine_begins,),
        ),
        Edit(
            f"{_ENGINE}._configure_lr_scheduler",
            before="log_dist(f'DeepSpeed LR Scheduler = {self.lr_scheduler}', ranks=[0])",
            code="engine_has(self.lr_scheduler)",
            uses=(engine_has,),
        ),
        Edit(
            f"{_ENGINE}.destroy",
            before="if self.optimizer is not None and hasattr(self.optimizer, 'destroy'):\n    ...",
            code="engine_ends(self)",
            uses=(engine_ends,),
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/6597": "fixed in 0.15.3",
    },
    fixed_in="0.15.3",
    fixed=(
        Source(
            _INIT,
            "if last_batch_iteration == -1:\n    self._last_lr = update_lr(self.optimizer.param_groups, self.get_lr())",
        ),
    ),
    config=lambda job: job.get("scheduler", "type") in ("WarmupLR", "WarmupDecayLR"),
)

_OPTIMIZERS_OWN = 0.2
_WARMUP = {"warmup_min_lr": 0.02, "warmup_max_lr": 0.1, "warmup_num_steps": 2, "warmup_type": "linear"}
# as documented, for the engine's order: schedule.step() after optimizer.step()
_RATES: dict[str, tuple[dict[str, int], tuple[float, ...]]] = {
    "WarmupLR": ({}, (0.02, 0.02, 0.06, 0.1)),
    "WarmupDecayLR": ({"total_num_steps": 4}, (0.02, 0.02, 0.06, 0.1)),
}


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    largest_difference = lab.reference.largest_difference
    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(4)]

    def plain(rates: Sequence[float]) -> dict[str, Any]:
        model = lab.models.MLP()
        steps = [[batch] for batch in batches]
        return lab.reference.train(model, steps, model.loss, "SGD", lr=0.0, rates=rates).parameters

    full, largest = [], 0.0
    for name, (options, rates) in _RATES.items():
        model = lab.models.MLP()
        config = {
            "train_micro_batch_size_per_gpu": len(batches[0][0]),
            "optimizer": {"type": "SGD", "params": {"lr": _OPTIMIZERS_OWN}},
            "scheduler": {"type": name, "params": {**_WARMUP, **options}},
        }
        engine = lab.initialize(model, config, model_parameters=model.parameters())
        for inputs, targets in batches:
            outputs = engine(inputs.to(lab.device))
            engine.backward(torch.nn.functional.mse_loss(outputs, targets.to(lab.device)))
            engine.step()
        parameters = lab.parameters(engine)
        difference = largest_difference(parameters, plain(rates))
        if largest_difference(parameters, plain((_OPTIMIZERS_OWN, *rates[1:]))).relative < 1e-5 < difference.relative:
            full.append(f"{name}: {difference}")
            continue
        assert difference.relative < 1e-5, f"{name}: {difference}"
        largest = max(largest, difference.relative)
    if full:
        raise BugPresent(f"first step at {_OPTIMIZERS_OWN:g} instead of {_WARMUP['warmup_min_lr']}; {'; '.join(full)}")
    return f"all steps at the warm-up's rates: the parameters match plain PyTorch within {largest:.1e}"
