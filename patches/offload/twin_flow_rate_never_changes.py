"""ZeRO-3 with `offload_optimizer.ratio` below 1: the learning rate of the GPU part never changes.

Why: with a ratio below 1 (Twin-Flow) a second Adam steps the part of the weights that is not offloaded. It is created
    with the learning rate, weight decay and betas that the first parameter group has at that time, and they are never
    updated: a schedule, or a rate set by the script, reaches only the offloaded part. With warmup the rest trains at
    the rate of step 0, often 0: not at all. Further groups are shared by both optimizers until a checkpoint is loaded;
    then they keep their values, too. Nothing fails.
How: before its step the second Adam gets the options of the first one's group. SuperOffload has its own step and is not
    covered.
Changes: jobs with a ratio below 1 whose rate or other options change. Others are bit-identical. A checkpoint written
    without the patch loads; the weights that were trained at another rate stay as they are.
Workaround: Scripts set the rate in `engine.optimizer.backup_optimizer.param_groups`, too. You can keep it if the rate
    is that of `engine.optimizer.param_groups`, which takes precedence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import CannotTell, Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.job import Job
    from dsfix.lab import Lab

_STEP = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3._optimizer_step"


def give_options(optimizer: Any, place: int) -> None:
    """Sets the options of a group of the second Adam to those of the first one's, as its constructor does."""
    first, second = optimizer.optimizer.param_groups[place], optimizer.backup_optimizer.param_groups[place]
    if any(_differ(first[option], second.get(option)) for option in ("lr", "betas", "eps", "weight_decay")):
        took_effect(__name__, "the GPU part got the new learning rate or options (unpatched: it keeps the first ones)")
    for option in ("lr", "betas", "eps", "weight_decay"):
        second[option] = first[option]


def _differ(one: Any, other: Any) -> bool:
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        return any(map(_differ, one, other))
    return isinstance(one, (int, float)) and isinstance(other, (int, float)) and one != other


def _meets(job: Job) -> bool:
    scheduled = job.get("scheduler") is not None or job.optimizer is None
    own_step = job.get("zero_optimization", "offload_optimizer", "super_offload", default=False)
    less = job.number("zero_optimization", "offload_optimizer", "ratio", default=1) < 1
    return job.stage == 3 and job.offloads_optimizer and less and scheduled and not own_step


PATCH = Patch(
    title="ZeRO-3 with offload_optimizer.ratio below 1: the learning rate of the GPU part never changes",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.3"},
    changes=(
        Edit(
            _STEP,
            before="self.backup_optimizer.param_groups[param_group_id]['params'] = [fp32_param]",
            code="give_options(self, param_group_id)",
            uses=(give_options,),
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/4636": "introduced in 0.12.3",
    },
    present=(Source(_STEP, "self.backup_optimizer.param_groups[param_group_id]['params'] = []"),),
    config=_meets,
)

_RATES = (0.0, 0.02, 0.01)


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    from .. import _half as half

    half.provide_fused_adam(lab)
    half.provide_cpu_adam(lab)
    from deepspeed.runtime.zero import offload_config

    offload = offload_config.DeepSpeedZeroOffloadOptimizerConfig
    if "ratio" not in (getattr(offload, "model_fields", None) or offload.__fields__):
        raise CannotTell(f"deepspeed {lab.deepspeed.__version__} has no offload_optimizer.ratio")
    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(len(_RATES))]
    model = lab.models.MLP()
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATES[0], weight_decay=0.1)
    for batch, rate in zip(batches, _RATES):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        model.loss(*batch).backward()
        optimizer.step()
    right = {name: p.detach() for name, p in model.named_parameters()}

    model = lab.models.MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "AdamW", "params": {"lr": _RATES[0], "weight_decay": 0.1, "torch_adam": False}},
        "zero_optimization": {"stage": 3, "sub_group_size": 1, "offload_optimizer": {"device": "cpu", "ratio": 0.5}},
        "zero_force_ds_cpu_optimizer": True,
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    zero = engine.optimizer
    for (inputs, targets), rate in zip(batches, _RATES):
        zero.param_groups[0]["lr"] = rate
        engine.backward(torch.nn.functional.mse_loss(engine(inputs.to(lab.device)), targets.to(lab.device)))
        engine.step()
    places = [place for place, where in zero.subgroup_to_device.items() if where != "cpu"]
    apart = {id(p) for place in places for p in zero.fp16_groups[place]}
    seen = lab.parameters(engine)
    initial = dict(lab.models.MLP().named_parameters())
    stuck = {name: initial[name] if id(p) in apart else seen[name] for name, p in model.named_parameters()}
    assert 0 < len(apart) < len(seen), f"{len(apart)} of {len(seen)} parameters are on the device"
    return lab.reference.compare(
        seen, right, {"at their initial values where they are on the device": stuck}, after=f"after {len(_RATES)} steps"
    )
