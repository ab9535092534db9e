"""fp16 or bf16 without ZeRO, and BF16_Optimizer, with torch's Adagrad: save_checkpoint fails with KeyError.

Why: torch's Adagrad creates its state in its constructor, for the model's parameters. FP16_UnfusedOptimizer and
    BF16_Optimizer then put their fp32 copies into its groups, which since torch 2.12 get their own state in the first
    step; the parameters' state remains, and `state_dict` finds these parameters in no group. Training runs until the
    first checkpoint; with an older torch, even the first step fails. ZeRO replaces Adagrad's state:
    zero_adagrad_groups.
How: where `state_dict` of an Adagrad fails this way, state of tensors that are in no group is dropped, and it is called
    again. What is dropped was never used. All other optimizers are unchanged.
Changes: none for a job that did not crash.
Workaround: Scripts clear the `state` of Adagrad before they pass it to `deepspeed.initialize`. You can keep it.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.job import Job
    from dsfix.lab import Lab

_UNFUSED = "deepspeed.runtime.fp16.unfused_optimizer:FP16_UnfusedOptimizer"
_BF16 = "deepspeed.runtime.bf16_optimizer:BF16_Optimizer"


def state_dict(optimizer: Any) -> Any:
    """The optimizer's state_dict; for Adagrad without the state of tensors that are in none of its groups."""
    import torch

    try:
        return optimizer.state_dict()
    except KeyError:
        if not isinstance(optimizer, torch.optim.Adagrad):
            raise
    took_effect(__name__, "the state of replaced parameters was omitted (unpatched: KeyError)")
    own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for each in [each for each in optimizer.state if torch.is_tensor(each) and id(each) not in own]:
        del optimizer.state[each]
    return optimizer.state_dict()


def _meets(job: Job) -> bool:
    bf16_optimizer = job.stage == 1 and job.may_be("bf16") and job.fp32_gradients
    return job.optimizer == "adagrad" and (bf16_optimizer or (job.stage == 0 and job.half))


PATCH = Patch(
    title="fp16 or bf16 without ZeRO, or BF16_Optimizer, + torch's Adagrad: save_checkpoint fails with KeyError",
    severity=Severity.CRASH,
    # an older torch ends in the first step: KeyError 'sum'
    affects={"deepspeed": ">=0.12.0", "torch": ">=2.12.0.dev0"},
    changes=tuple(
        Edit(
            f"{optimizer}.state_dict",
            replace=f"state_dict[{key}] = self.optimizer.state_dict()",
            code=f"import {__name__} as adagrad\nstate_dict[{key}] = adagrad.state_dict(self.optimizer)",
        )
        for optimizer, key in (
            (_UNFUSED, "OPTIMIZER_STATE_DICT"),
            (_BF16, "BASE_OPTIMIZER_STATE"),
        )
    ),
    symptom=r"in save_checkpoint[\s\S]*self\.optimizer\.state_dict\(\)[\s\S]*KeyError: \d+",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/380": "introduced",
    },
    present=(
        # the parameters are replaced, their state is not; ZeRO constructs another Adagrad instead of the step
        Source(
            f"{_UNFUSED}.__init__",
            "self.fp32_groups.append(fp32_group)\nparam_group['params'] = self.fp32_groups[i]",
        ),
        Source(
            f"{_UNFUSED}.initialize_optimizer_states",
            "for i, group in enumerate(self.fp32_groups):\n    ...\n"
            "self.optimizer.step()\n"
            "for i, group in enumerate(self.fp16_groups):\n    ...",
        ),
        Source(
            f"{_BF16}._setup_for_real_optimizer",
            "param_group['params'] = [self.fp32_groups_flat_partition[i]]\n"
            "see_memory_usage(f'after initializing group {i}', force=True)",
        ),
    ),
    config=_meets,
)

_STEPS = 4


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    models, reference = lab.models, lab.reference
    from .. import _half as half

    batches = [models.regression_batch(rank=0, step=step) for step in range(_STEPS)]
    configs: dict[str, dict[str, Any]] = {
        "fp16 without ZeRO": {"fp16": {"enabled": True, "loss_scale": 1}},
        "bf16 with ZeRO-1": {
            "bf16": {"enabled": True},
            "data_types": {"grad_accum_dtype": "fp32"},
            "zero_optimization": {"stage": 1},
            "zero_allow_untested_optimizer": True,
        },
    }

    def create(config: dict[str, Any], seed: int) -> Any:
        model = models.MLP(seed=seed)
        optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
        return lab.initialize(
            model, {"train_micro_batch_size_per_gpu": len(batches[0][0]), **config}, optimizer=optimizer
        )

    def train(engine: Any, some: Any) -> dict[str, Any]:
        for inputs, targets in some:
            engine.backward(half.loss(engine, inputs, targets, next(engine.module.parameters())))
            engine.step()
        return lab.parameters(engine)

    failed: dict[str, KeyError] = {}
    for name, config in configs.items():
        where = str(lab.tmp / name.partition(" ")[0])
        engine = create(config, seed=0)
        try:
            train(engine, batches[: _STEPS // 2])
        except KeyError as error:
            if error.args != ("sum",):
                raise
            raise CannotTell(
                "torch's Adagrad before 2.12 has no state for the fp32 copies: the first step fails"
            ) from error
        try:
            engine.save_checkpoint(where)
        except KeyError as error:
            if "optimizer.state_dict()" not in "".join(traceback.format_tb(error.__traceback__)):
                raise
            failed[name] = error
            continue
        expected = train(engine, batches[_STEPS // 2 :])
        resumed = create(config, seed=1)
        resumed.load_checkpoint(where)
        difference = reference.largest_difference(train(resumed, batches[_STEPS // 2 :]), expected)
        assert difference.absolute == 0, f"{name}, after resuming {difference}"
    if failed:
        raise BugPresent(f"{' and '.join(failed)}: save_checkpoint fails with a KeyError of state_dict") from next(
            iter(failed.values())
        )
    return "a job that resumes from its checkpoint matches an uninterrupted one bit for bit"
