"""Loading a universal checkpoint leaves frozen parameters and buffers as they were before the load.

Why: `load_checkpoint` with `load_universal` restores what the optimizer holds and does not load the module's state:
    frozen parameters (the base model under LoRA) and buffers (BatchNorm's statistics) keep what the script gave the
    model. Nothing fails. Where that came from the same files as at the first start nothing is wrong; where it is
    random, or other weights, the trained part goes on beside a model that it was not trained with. The checkpoint has
    them: the converter copies the files with the module's state.
How: what the optimizer does not hold is copied from the module's state and, under ZeRO-3, from the parts of frozen
    parameters that each rank has saved, whatever the number of ranks was. A parameter that cannot be restored so
    (another shape, parts on NVMe or quantized, MiCS) stays as it was, with a warning. With another degree of tensor
    parallelism, and in a pipeline, whose converter leaves these files out, nothing changes.
Changes: jobs that resume so have the frozen parameters and buffers of the checkpoint. The universal checkpoint itself
    is right and can be loaded again. What was trained and saved since a load that left a part unrestored fits the
    model as it then was, and that is what was saved.
Upstream: not fixed in 0.19.8, and not known to be reported; as old as universal checkpoints,
    https://github.com/deepspeedai/DeepSpeed/pull/1953, which were Megatron-DeepSpeed's only up to
    https://github.com/deepspeedai/DeepSpeed/pull/5289 (0.14.1), and ZeRO-1/2's up to
    https://github.com/deepspeedai/DeepSpeed/pull/5475 (0.14.5).
Retire: when DeepSpeed 0.19.8 is no longer supported here, if a release after it restores them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_LOAD = "deepspeed.runtime.engine:DeepSpeedEngine._load_checkpoint"
_GROUPS = ("round_robin_bit16_groups", "bf16_groups", "bit16_groups", "fp16_groups")


def restore(engine: Any, checkpoint: Mapping[str, Any], path: str) -> None:
    """Give what the optimizer does not hold its values in the checkpoint, of which `path` is the file for rank 0."""
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
            continue  # saved without frozen parameters, or a buffer that is not to be saved
        quantized = name in whole and not tensor.is_floating_point()
        if state[name].shape == tensor.shape and not quantized:
            tensor.data.copy_(state[name])
        else:
            left.append(name)
    if left:
        from deepspeed.utils import logger  # type: ignore[import-not-found,unused-ignore]

        logger.warning(f"universal checkpoint: not restored: {', '.join(left)}")


def _restore_partitioned(engine: Any, checkpoint: Mapping[str, Any], path: str, params: Mapping[str, Any]) -> list[str]:
    """Write this rank's part of ZeRO-3's frozen parameters from the parts of all ranks that saved; what it cannot."""
    from deepspeed import comm as dist  # type: ignore[import-not-found,unused-ignore]

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
            own[low - start : high - start].copy_(fragments[name].view(-1)[low - rank * size : high - rank * size])
    return left


PATCH = Patch(
    title="Loading a universal checkpoint leaves frozen parameters and buffers as they were",
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
    symptom="",
    upstream=(
        "https://github.com/deepspeedai/DeepSpeed/pull/1953",
        "https://github.com/deepspeedai/DeepSpeed/pull/5289",
        "https://github.com/deepspeedai/DeepSpeed/pull/5475",
    ),
    fixed_in=None,
    # before, universal checkpoints were for Megatron-DeepSpeed; nothing of that has been run
    present=(
        Source(
            "deepspeed.runtime.base_optimizer:ZeROOptimizer.load_hp_checkpoint_state_from_checkpoint_dir",
            "tp_rank = bwc_tensor_model_parallel_rank(mpu=self.mpu)",
        ),
    ),
    ranks=2,
)

_STEPS = 2
_FROZEN = "blocks.0.0."


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"  # to 0.15.4 with torch >= 2.6; the files are our own
    _ = lab.torch
    from packaging.version import Version

    version = Version(lab.deepspeed.__version__)
    if version < Version("0.14.1"):
        raise CannotTell(f"deepspeed {version} loads universal checkpoints only where Megatron's mpu is given")
    stages = [stage for stage in (1, 2, 3) if stage < 3 or version >= Version("0.14.5")]
    losses = [_resume(lab, stage) for stage in stages]
    return (
        f"ZeRO-1 to {stages[-1]}: frozen parameters, buffers and the loss, {losses[0]:.4f}, are those of the checkpoint"
    )


def _resume(lab: Lab, stage: int) -> float:
    """The loss after loading a universal checkpoint, where all is as it was saved."""
    torch = lab.torch
    from dsfix.lab.checkpoints import convert_to_universal, train
    from dsfix.lab.models import MLP, regression_batch
    from dsfix.lab.reference import largest_difference

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
        inputs, targets = (tensor.to(lab.device) for tensor in regression_batch(lab.rank, _STEPS))
        with torch.no_grad():
            return float(torch.nn.functional.mse_loss(engine(inputs), targets))

    engine = engine_of(MLP(), bias=0.5)
    train(lab, engine, [regression_batch(lab.rank, step) for step in range(_STEPS)])
    saved, expected = seen(engine), loss(engine)
    root, info = lab.tmp / str(stage), {"universal_checkpoint_version": 0.2}
    engine.save_checkpoint(str(root), tag="saved", client_state={"universal_checkpoint_info": info})
    tag = convert_to_universal(lab, root, "saved")
    engine = engine_of(MLP(seed=1), bias=0.0, checkpoint={"load_universal": True})
    fresh = seen(engine)
    engine.load_checkpoint(str(root), tag=tag)
    loaded = seen(engine)
    difference = largest_difference(loaded, saved)
    stale = {name: fresh[name] if name == "bias" or name.startswith(_FROZEN) else saved[name] for name in saved}
    if largest_difference(loaded, stale).relative < 1e-6 < difference.relative:
        raise BugPresent(f"ZeRO-{stage}: frozen parameters and buffers are the fresh model's: {difference}")
    assert difference.relative < 1e-6, f"ZeRO-{stage}: {difference}"
    assert abs(loss(engine) - expected) < 1e-5, f"ZeRO-{stage}: the loss is {loss(engine)}, not {expected}"
    return expected
