"""ZeRO-3 with `offload_optimizer.ratio` below 1: checkpoints omit Adam's moments of the GPU part.

Why: with a ratio below 1 (Twin-Flow) a second Adam steps the part of the weights that is not offloaded. Only the state
    of the first one is saved. A resumed job has the right weights, but the moments and the step count of that part
    start over. With several parameter groups it also steps weights of the first Adam a second time: loading leaves them
    in the second one's groups, which until then are the first one's, from the second group on. MiCS with an offloaded
    optimizer has no ratio: the second Adam steps all weights (0.12.4 to 0.19.6).
How: the state of the second Adam is added to the checkpoint, by sub-group, and given back when optimizer states are
    loaded; its groups are emptied then.
Changes: jobs that resume. A checkpoint written without the patch loads as before, and one written with it loads without
    it. Moments start over, as without the patch, for sub-groups that the other Adam stepped before saving (another
    ratio, or a release on the other side of 0.18.0) and, with a warning, if `amsgrad` is now on but was off.
Workaround: Scripts save the state of `engine.optimizer.backup_optimizer` in a separate file and restore it after
    load_checkpoint. You can keep it: it is the same state that the patch restores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dsfix.patch import CannotTell, Edit, Patch, Severity, Source
from dsfix.process.effects import ran

if TYPE_CHECKING:
    from dsfix.job import Job
    from dsfix.lab import Lab

_OPTIMIZER = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3"
_FIRST, _KEY = "optimizer_state_dict", "backup_optimizer"


def keep_second(optimizer: Any, saved: dict[str, Any]) -> None:
    """Adds the state of the second Adam to what is saved, by the number of the sub-group."""
    if hasattr(optimizer, "backup_optimizer"):
        states, device = optimizer.backup_optimizer.state, optimizer.subgroup_to_device
        own = enumerate(optimizer.fp32_partitioned_groups_flat)
        # beside the first one's state, which zero_to_fp32 drops when it has read a file
        saved[_FIRST][_KEY] = {
            place: dict(states[flat]) for place, flat in own if device[place] != "cpu" and flat in states
        }
        if saved[_FIRST][_KEY]:
            ran(__name__)  # whether the script saves and loads them itself is not known


def give_second(optimizer: Any, saved: dict[str, Any]) -> None:
    """Gives the second Adam the saved state of the sub-groups that it steps, and no weights until it steps one."""
    import logging

    import torch
    from deepspeed.utils import log_dist

    second = getattr(optimizer, "backup_optimizer", None)
    if second is None:
        return
    for group in second.param_groups:
        group["params"] = []
    if _KEY not in saved[_FIRST]:
        return
    unfit = 0
    for place, flat in enumerate(optimizer.fp32_partitioned_groups_flat):
        if optimizer.subgroup_to_device[place] == "cpu":
            continue
        second.state.pop(flat, None)
        state = dict(saved[_FIRST][_KEY].get(place, {}))
        if not state:
            continue
        step = float(state.pop("step"))
        amsgrad = second.param_groups[optimizer.sub_group_to_group_id[place]].get("amsgrad")
        if (amsgrad and "max_exp_avg_sq" not in state) or any(each.shape != flat.shape for each in state.values()):
            unfit += 1
            continue
        state = {name: each.to(flat.device, flat.dtype) for name, each in state.items()}
        # FusedAdam counts in integers (0.12.3 to 0.13.2), AdamW in a tensor on the CPU
        tensor = isinstance(second, torch.optim.AdamW)
        state["step"] = torch.tensor(step, dtype=torch.float32, device="cpu") if tensor else int(step)
        second.state[flat] = state
        ran(__name__)
    if unfit:
        log_dist(
            f"The checkpoint's optimizer state of {unfit} sub-groups on the device has another size or, with amsgrad, "
            "no max_exp_avg_sq: their moments begin anew",
            ranks=[0],
            level=logging.WARNING,
        )


def _meets(job: Job) -> bool:
    part = job.number("zero_optimization", "offload_optimizer", "ratio", default=1) < 1
    mics = job.number("zero_optimization", "mics_shard_size") > 0
    return job.stage == 3 and job.offloads_optimizer and (part or mics)


PATCH = Patch(
    title="ZeRO-3 with offload_optimizer.ratio below 1: checkpoints omit Adam's moments of the GPU part",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.3"},
    changes=(
        Edit(
            f"{_OPTIMIZER}._rigid_state_dict",
            before="return state_dict",
            code="keep_second(self, state_dict)",
            uses=(keep_second,),
        ),
        Edit(
            f"{_OPTIMIZER}._rigid_load_state_dict",
            before="self._clear_fp32_optimizer_param_groups()",
            code="give_second(self, state_dict)",
            uses=(give_second,),
        ),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/4636": "introduced in 0.12.3"},
    present=(
        Source(
            f"{_OPTIMIZER}._optimizer_step",
            "self.backup_optimizer.param_groups[param_group_id]['params'] = [fp32_param]",
        ),
    ),
    config=_meets,
)

_ADAM = {"lr": 0.02, "weight_decay": 0.1}
_STEPS, _SAVED = 5, 3


def reproduce(lab: Lab) -> str:
    torch, models = lab.torch, lab.models
    from .. import _half as half
    from ..checkpoint import _checkpoints as checkpoints

    checkpoints.load_whole_files()
    half.provide_fused_adam(lab)
    half.provide_cpu_adam(lab)
    from deepspeed.runtime.zero import offload_config

    offload = offload_config.DeepSpeedZeroOffloadOptimizerConfig
    if "ratio" not in (getattr(offload, "model_fields", None) or offload.__fields__):
        raise CannotTell(f"deepspeed {lab.deepspeed.__version__} has no offload_optimizer.ratio")
    batches = [models.regression_batch(rank=0, step=step) for step in range(_STEPS)]
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "AdamW", "params": {**_ADAM, "torch_adam": False}},
        "zero_optimization": {"stage": 3, "sub_group_size": 1, "offload_optimizer": {"device": "cpu", "ratio": 0.5}},
        "zero_force_ds_cpu_optimizer": True,
    }

    def groups(model: Any, count: int) -> list[dict[str, Any]]:
        parameters, rate = list(model.parameters()), _ADAM["lr"]
        return [{"params": parameters[place::count], "lr": rate / (1 + place)} for place in range(count)]

    def resumed(count: int) -> Any:
        def start() -> Any:
            model = models.MLP()
            return lab.initialize(model, config, model_parameters=groups(model, count))

        engine = start()
        checkpoints.train(lab, engine, batches[:_SAVED])
        engine.save_checkpoint(str(lab.tmp), tag=f"groups{count}")
        engine = start()
        engine.load_checkpoint(str(lab.tmp), tag=f"groups{count}")
        checkpoints.train(lab, engine, batches[_SAVED:])
        return engine

    def plain(count: int, forgotten: Sequence[str] = ()) -> dict[str, Any]:
        model = models.MLP()
        named = dict(model.named_parameters())
        optimizer = torch.optim.AdamW(groups(model, count), **_ADAM)
        for step, batch in enumerate(batches):
            if step == _SAVED:
                for name in forgotten:
                    del optimizer.state[named[name]]
            optimizer.zero_grad()
            model.loss(*batch).backward()
            optimizer.step()
        return {name: each.detach() for name, each in named.items()}

    engine = resumed(1)
    zero = engine.optimizer
    places = [place for place, where in zero.subgroup_to_device.items() if where != "cpu"]
    apart = {id(each) for place in places for each in zero.fp16_groups[place]}
    forgotten = [name for name, each in engine.module.named_parameters() if id(each) in apart]
    after = f"after {_SAVED} steps, resuming, and {_STEPS - _SAVED} more"
    wrong = {"with new moments of the part on the device": plain(1, forgotten)}
    one = lab.reference.compare(lab.parameters(engine), plain(1), wrong, after=after)
    return f"{one}; {lab.reference.compare(lab.parameters(resumed(3)), plain(3), {}, after='with three groups')}"
