"""MiCS (`mics_shard_size`): load_checkpoint ends with a TypeError, so that no job can resume.

Why: since 0.14.5 the engine passes the shapes of the parameters to the optimizer's `load_state_dict`, for universal
    checkpoints. MiCS has its own method, which does not accept them.
How: the shapes are omitted for a regular checkpoint, which does not need them.
Changes: jobs with MiCS that load a checkpoint with its optimizer's state. Universal checkpoints, and
    `pipeline_loading_checkpoint`, with which MiCS hung before 0.14.5, still fail with the same message.
Workaround: Scripts replace `MiCS_Optimizer.load_state_dict` by a function that drops `param_shapes` before it calls the
    original. You can keep it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, CannotTell, Patch, Replace, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsfix.lab import Lab

_LOAD = "deepspeed.runtime.zero.mics:MiCS_Optimizer.load_state_dict"


def without_shapes(load: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `load` for callers that pass param_shapes, which only a universal checkpoint needs."""
    # with load_serial the ranks would wait for a message that MiCS never sends
    other = "checkpoint_folder", "load_serial"

    @functools.wraps(load)
    def load_state_dict(self: Any, *args: Any, **options: Any) -> Any:
        if all(options.get(each) is None for each in other):
            if "param_shapes" in options:
                took_effect(__name__, "a checkpoint was loaded without the shapes (unpatched: TypeError)")
            options.pop("param_shapes", None)
        return load(self, *args, **options)

    return load_state_dict


PATCH = Patch(
    title="MiCS: load_checkpoint: TypeError, load_state_dict() got an unexpected keyword argument 'param_shapes'",
    severity=Severity.CRASH,
    # 0.19.7 has no MiCS
    affects={"deepspeed": ">=0.14.5,<0.19.7"},
    changes=(Replace(_LOAD, without_shapes),),
    symptom=r"load_state_dict\(\) got an unexpected keyword argument 'param_shapes'",
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/5475": "introduced in 0.14.5"},
    fixed_in="0.19.7",
    present=(
        Source(
            "deepspeed.runtime.engine:DeepSpeedEngine._load_zero_checkpoint",
            "param_shapes = self._get_zero_param_shapes()",
        ),
        Source(
            _LOAD,
            "super().load_state_dict("
            "state_dict_list, load_optimizer_states, load_from_fp32_weights, checkpoint_folder)",
        ),
    ),
    fixed=(
        Source(
            "deepspeed.runtime.engine:DeepSpeedEngine.is_first_weights_partition_group",
            "return self.zero_optimization_partition_weights()",
        ),
    ),
    config=lambda job: job.stage == 3 and job.number("zero_optimization", "mics_shard_size") > 0,
    ranks=2,
)

_ADAM = {"lr": 0.02, "weight_decay": 0.1}
_STEPS, _SAVED = 4, 2


def reproduce(lab: Lab) -> str:
    from packaging.version import Version

    from ..checkpoint import _checkpoints as checkpoints

    lab.require_ranks(2)
    checkpoints.load_whole_files()
    torch, models = lab.torch, lab.models
    release = Version(lab.deepspeed.__version__)
    if release >= Version("0.19.7"):
        raise CannotTell("since 0.19.7 there is no MiCS")
    if release == Version("0.12.3"):
        raise CannotTell("in 0.12.3 MiCS cannot train: 'float' object has no attribute 'get_model_parallel_world_size'")
    steps = [[models.regression_batch(rank, step) for rank in (0, 1)] for step in range(_STEPS)]
    collectives = torch.distributed.distributed_c10d
    manager = collectives._coalescing_manager
    # gloo has none of its own
    collectives._coalescing_manager = lambda group, device, async_ops: manager(group, async_ops=async_ops)
    config = {
        "train_micro_batch_size_per_gpu": len(steps[0][0][0]),
        "optimizer": {"type": "AdamW", "params": {**_ADAM, "torch_adam": True}},
        "zero_optimization": {"stage": 3, "mics_shard_size": 2, "stage3_param_persistence_threshold": 0},
    }

    def start(seed: int) -> Any:
        model = models.MLP(seed=seed)
        return lab.initialize(model, config, model_parameters=model.parameters())

    batches = [step[lab.rank] for step in steps]
    engine = start(seed=0)
    checkpoints.train(lab, engine, batches[:_SAVED])
    engine.save_checkpoint(str(lab.tmp), tag="saved")
    engine = start(seed=1)
    try:
        engine.load_checkpoint(str(lab.tmp), tag="saved")
    except TypeError as error:
        if "unexpected keyword argument 'param_shapes'" not in str(error):
            raise
        raise BugPresent(f"load_checkpoint: {error}") from error
    checkpoints.train(lab, engine, batches[_SAVED:])
    model = models.MLP(seed=0)
    right = lab.reference.train(model, steps, model.loss, "AdamW", **_ADAM).parameters
    result: str = lab.reference.compare(lab.parameters(engine), right, after=f"after {_STEPS} steps, resumed")
    return result
