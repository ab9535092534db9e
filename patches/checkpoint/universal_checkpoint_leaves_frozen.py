"""Loading a universal checkpoint does not restore frozen parameters and buffers.

Why: `load_checkpoint` with `load_universal` restores what the optimizer holds but does not load the module's state:
    frozen parameters (the base model under LoRA) and buffers (BatchNorm's statistics) keep the values that the script
    gave them. Nothing fails. If those come from the same files as at the first start, nothing is wrong; if they are
    random or different weights, the trained part continues with a model that it was not trained with. The checkpoint
    has the values: the converter copies the files with the module's state. The bug is as old as universal checkpoints,
    which before 0.14.1 existed for Megatron-DeepSpeed only, and before 0.14.5 for ZeRO-1/2 only.
How: what the optimizer does not hold is copied from the module's state and, under ZeRO-3, from the partitions of frozen
    parameters that each rank saved, whatever the number of ranks was. A parameter that cannot be restored this way
    (different shape, partitions on NVMe or quantized, MiCS) stays as it was, with a warning. Nothing changes with a
    different degree of tensor parallelism, or in a pipeline, whose converter omits these files.
Changes: jobs that resume this way get the frozen parameters and buffers of the checkpoint. The universal checkpoint
    itself is correct and can be loaded again. A checkpoint saved after an incomplete load is consistent: it contains
    the model that was actually trained.
Workaround: Scripts load the frozen weights and buffers themselves: from the same files as at the first start, or, under
    ZeRO-1/2, after the load from the checkpoint's `mp_rank_00_model_states.pt`. You can keep it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dsfix.patch import CannotTell, Edit, Patch, Severity, Source
from dsfix.process.effects import ran

if TYPE_CHECKING:
    from dsfix.job import Job
    from dsfix.lab import Lab

_LOAD = "deepspeed.runtime.engine:DeepSpeedEngine._load_checkpoint"
_GROUPS = ("round_robin_bit16_groups", "bf16_groups", "bit16_groups", "fp16_groups")


def restore(engine: Any, checkpoint: Mapping[str, Any], path: str) -> None:
    """Load what the optimizer does not hold from the checkpoint, whose file for rank 0 is `path`."""
    state, zero = checkpoint.get("module"), engine.optimizer
    if not isinstance(state, Mapping) or checkpoint.get("mp_world_size") != engine.mp_world_size:
        return
    if not (engine.zero_optimization() or hasattr(zero, "bf16_groups")):
        return
    groups = next((getattr(zero, name) for name in _GROUPS if hasattr(zero, name)), ())
    held = {id(parameter) for group in groups for parameter in group}
    others = {name: p for name, p in engine.module.named_parameters() if id(p) not in held}
    partitioned = {name: p for name, p in others.items() if hasattr(p, "ds_id")}
    left = _restore_partitioned(engine, checkpoint, path, partitioned)
    whole = {name: p for name, p in others.items() if name not in partitioned}
    for name, tensor in [*whole.items(), *engine.module.named_buffers()]:
        if name not in state:
            continue  # saved without frozen parameters, or a non-persistent buffer
        quantized = name in whole and not tensor.is_floating_point()
        if state[name].shape == tensor.shape and not quantized:
            ran(__name__)  # it may have these values already
            tensor.data.copy_(state[name])
        else:
            left.append(name)
    if left:
        from deepspeed.utils import logger

        logger.warning(f"universal checkpoint: not restored: {', '.join(left)}")


def _restore_partitioned(engine: Any, checkpoint: Mapping[str, Any], path: str, params: Mapping[str, Any]) -> list[str]:
    """Fill this rank's partitions of ZeRO-3's frozen parameters from those saved; the names of those that it cannot."""
    from deepspeed import comm as dist

    shapes, first = checkpoint.get("frozen_param_shapes"), checkpoint.get("frozen_param_fragments")
    if not params or not shapes or not first:
        return []
    ranks = checkpoint["dp_world_size"]
    directory, name_of_first = os.path.split(path)
    files = [
        os.path.join(directory, name_of_first.replace("zero_pp_rank_0_", f"zero_pp_rank_{rank}_"))
        for rank in range(ranks)
    ]
    wanted, left = {}, []
    for name, parameter in params.items():
        if name not in first:
            continue
        own, numel = parameter.ds_tensor, parameter.ds_numel
        group = parameter.ds_process_group
        sizes_fit = (
            own.numel() == own.ds_numel == -(-numel // dist.get_world_size(group=group))
            and first[name].numel() == -(-numel // ranks)
            and tuple(shapes[name]) == tuple(parameter.ds_shape)
        )
        if sizes_fit and own.is_floating_point() and first[name].is_floating_point():
            start = dist.get_rank(group=group) * own.numel()
            wanted[name] = own.data.view(-1), start, min(start + own.numel(), numel)
        else:
            left.append(name)
    if wanted and not all(map(os.path.isfile, files)):
        return [*left, *wanted]
    for rank, file in enumerate(files):
        fragments = first if rank == 0 else None
        for name, (own, start, end) in wanted.items():
            size = first[name].numel()
            low, high = max(start, rank * size), min(end, (rank + 1) * size)
            if low >= high:
                continue
            if fragments is None:
                fragments = engine.checkpoint_engine.load(file, map_location="cpu")["frozen_param_fragments"]
            ran(__name__)
            own[low - start : high - start].copy_(fragments[name].view(-1)[low - rank * size : high - rank * size])
    return left


def _meets(job: Job) -> bool:
    loads = job.get("checkpoint", "load_universal") is True and job.stage in (1, 2, 3)
    return loads and job.frozen is True and job.pipeline is not True


PATCH = Patch(
    title="Loading a universal checkpoint does not restore frozen parameters and buffers",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.14.1"},
    changes=(
        Edit(
            _LOAD,
            after="if not self.load_universal_checkpoint():\n    ...",
            code=f"""if self.load_universal_checkpoint():
    from {__name__} import restore
    restore(self, checkpoint, load_path)""",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/1953": "introduced, with universal checkpoints",
        "https://github.com/deepspeedai/DeepSpeed/pull/5289": "related: 0.14.1, without Megatron-DeepSpeed",
        "https://github.com/deepspeedai/DeepSpeed/pull/5475": "related: 0.14.5, for ZeRO-3",
    },
    # in 0.14.0 and earlier, universal checkpoints were for Megatron-DeepSpeed only; none of those have been run
    present=(
        Source(
            "deepspeed.runtime.base_optimizer:ZeROOptimizer.load_hp_checkpoint_state_from_checkpoint_dir",
            "tp_rank = bwc_tensor_model_parallel_rank(mpu=self.mpu)",
        ),
    ),
    config=_meets,
    ranks=2,
)

_STEPS = 2
_FROZEN = "blocks.0.0."


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    from packaging.version import Version

    from ._checkpoints import load_whole_files

    load_whole_files()
    version = Version(lab.deepspeed.__version__)
    if version < Version("0.14.1"):
        raise CannotTell(f"deepspeed {version} loads universal checkpoints only with Megatron's mpu")
    stages = [stage for stage in (1, 2, 3) if stage < 3 or version >= Version("0.14.5")]
    losses = [_resume(lab, stage) for stage in stages]
    return f"ZeRO-1 to {stages[-1]}: frozen parameters, buffers and the loss, {losses[0]:.4f}, match the checkpoint"


def _resume(lab: Lab, stage: int) -> float:
    """The loss before saving, which is also that after loading the universal checkpoint."""
    torch = lab.torch
    from dsfix.lab.universal import convert_to_universal

    from ._checkpoints import train

    def engine_of(model: Any, bias: float, **more: Any) -> Any:
        model.register_buffer("bias", torch.full((1,), bias))
        model.register_forward_hook(lambda module, _, outputs: outputs + module.bias)
        for parameter in model.blocks[0][0].parameters():
            parameter.requires_grad_(False)
        config = {
            "train_micro_batch_size_per_gpu": 4,
            "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
            "zero_optimization": {"stage": stage},
            **more,
        }
        return lab.initialize(model, config, model_parameters=[p for p in model.parameters() if p.requires_grad])

    def seen(engine: Any) -> dict[str, Any]:
        return {**lab.parameters(engine), "bias": engine.module.bias.detach().cpu()}

    def loss(engine: Any) -> float:
        inputs, targets = (tensor.to(lab.device) for tensor in lab.models.regression_batch(lab.rank, _STEPS))
        with torch.no_grad():
            return float(torch.nn.functional.mse_loss(engine(inputs), targets))

    engine = engine_of(lab.models.MLP(), bias=0.5)
    train(lab, engine, [lab.models.regression_batch(lab.rank, step) for step in range(_STEPS)])
    saved, expected = seen(engine), loss(engine)
    root, info = lab.tmp / str(stage), {"universal_checkpoint_version": 0.2}
    engine.save_checkpoint(str(root), tag="saved", client_state={"universal_checkpoint_info": info})
    tag = convert_to_universal(lab, root, "saved")
    engine = engine_of(lab.models.MLP(seed=1), bias=0.0, checkpoint={"load_universal": True})
    fresh = seen(engine)
    engine.load_checkpoint(str(root), tag=tag)
    stale = {name: fresh[name] if name == "bias" or name.startswith(_FROZEN) else saved[name] for name in saved}
    lab.reference.compare(
        seen(engine),
        saved,
        {"the new model's": stale},
        within=1e-6,
        after=f"ZeRO-{stage}:",
        what="frozen parameters and buffers",
    )
    assert abs(loss(engine) - expected) < 1e-5, f"ZeRO-{stage}: the loss is {loss(engine)}, not {expected}"
    return expected
