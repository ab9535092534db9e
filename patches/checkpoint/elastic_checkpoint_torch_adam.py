"""ZeRO-1/2 with `elastic_checkpoint` and torch's Adam cannot resume: the separate `step` is missing.

Why: with `"elastic_checkpoint": true` a checkpoint stores the optimizer's `step` separately if the parameter groups
    have one. Those of DeepSpeed's own optimizers do; torch's Adam, AdamW and others keep `step` in their state, where
    it is saved as well. Since 0.13.2 `load_checkpoint` requires the separate one: AssertionError, or KeyError
    'base_optimizer_state_step' where `elastic_checkpoint` has been disabled since. It would then treat `step` as
    partitioned, and pad it.
How: a `step` that the checkpoint does not store separately is not set, and a 0-dim tensor is loaded as it is. This
    needs as many ranks as saved the checkpoint: DeepSpeed itself rejects another number, elastic or not. Saving: see
    elastic_checkpoint_scalar_step.
Workaround: Scripts load with `load_optimizer_states=False` and start with new moments. You can keep it; without it, the
    saved ones are loaded.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OPTIMIZER = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"
_STEP = "_restore_step_from_elastic_checkpoint"

PATCH = Patch(
    title="ZeRO-1/2 + elastic_checkpoint + torch's Adam: load_checkpoint fails, no 'base_optimizer_state_step'",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.13.2"},
    changes=(
        Edit(
            f"{_OPTIMIZER}.{_STEP}",
            before="assert BASE_OPTIMIZER_STATE_STEP in all_state_dict[0]",
            code="if not any(BASE_OPTIMIZER_STATE_STEP in sd for sd in all_state_dict):\n    return None",
            effect="the states were loaded without a separate step (unpatched: AssertionError)",
            when="not any(BASE_OPTIMIZER_STATE_STEP in sd for sd in all_state_dict)",
        ),
        Edit(
            f"{_OPTIMIZER}._restore_base_optimizer_state",
            replace="param_group['step'] = base_optimizer_state_step",
            code="if base_optimizer_state_step is not None:\n    param_group['step'] = base_optimizer_state_step",
        ),
        Edit(
            f"{_OPTIMIZER}._restore_base_optimizer_state",
            after="saved = base_optimizer_group_states[i][key]",
            # otherwise it gets a dimension, and padding; placed where torch's optimizers keep it
            code="""if torch.is_tensor(saved) and saved.dim() == 0:
    on_device = group.get('capturable') or group.get('fused')
    self.optimizer.state[p][key] = saved.to(p.device) if on_device else saved.clone()
    continue""",
            effect="a 0-dim state was loaded unchanged (unpatched: padded or rejected)",
            when="torch.is_tensor(saved) and saved.dim() == 0",
        ),
        Edit(
            f"{_OPTIMIZER}._load_legacy_checkpoint",
            replace="current_rank_sd[BASE_OPTIMIZER_STATE_STEP]",
            code="current_rank_sd.get(BASE_OPTIMIZER_STATE_STEP)",
        ),
        Edit(
            f"{_OPTIMIZER}._partition_base_optimizer_state",
            replace="torch.is_tensor(all_partition_states[0])",
            code="torch.is_tensor(all_partition_states[0]) and all_partition_states[0].dim() > 0",
        ),
    ),
    symptom=rf"in {_STEP}[\s\S]*AssertionError|KeyError: 'base_optimizer_state_step'",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/5104": "introduced in 0.13.2",
    },
    present=(
        Source(f"{_OPTIMIZER}.state_dict", "if 'step' in self.optimizer.param_groups[0]:\n    ..."),
        Source(
            f"{_OPTIMIZER}._restore_elastic_base_optimizer_state",
            f"self._restore_base_optimizer_state(base_optimizer_group_states, self.{_STEP}(all_state_dict), None)",
        ),
    ),
)

_STEPS = 4
_ADAMW = {"lr": 0.01, "weight_decay": 0.0}


def reproduce(lab: Lab) -> str:
    from ._checkpoints import train

    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(_STEPS)]

    def start(seed: int, elastic: bool) -> Any:
        model = lab.models.MLP(seed=seed)
        config = {
            "train_micro_batch_size_per_gpu": len(batches[0][0]),
            "optimizer": {"type": "AdamW", "params": _ADAMW},
            "zero_optimization": {"stage": 1, "elastic_checkpoint": elastic},
        }
        return lab.initialize(model, config, model_parameters=model.parameters())

    engine = start(seed=0, elastic=True)
    if not hasattr(engine.optimizer, _STEP):
        raise CannotTell(f"deepspeed {lab.deepspeed.__version__} fails elsewhere: it treats `step` as partitioned")
    train(lab, engine, batches[: _STEPS // 2])
    engine.save_checkpoint(str(lab.tmp), tag="half")
    train(lab, engine, batches[_STEPS // 2 :])
    expected = lab.parameters(engine)

    # also where `elastic_checkpoint` has been disabled since
    done = f"resumed after {_STEPS // 2} of {_STEPS} steps"
    differences = []
    for elastic in (True, False):
        engine = start(seed=1, elastic=elastic)
        try:
            engine.load_checkpoint(str(lab.tmp), tag="half")
        except AssertionError as error:
            if traceback.extract_tb(error.__traceback__)[-1].name == _STEP:
                raise BugPresent(f"load_checkpoint: AssertionError in {_STEP}") from error
            raise
        train(lab, engine, batches[_STEPS // 2 :])
        differences.append(lab.reference.largest_difference(lab.parameters(engine), expected))
        assert differences[-1].relative < 1e-6, f"{done} {differences[-1]}"
    relative = max(difference.relative for difference in differences)
    return f"{done} the parameters match an uninterrupted job within {relative:.1e}"
