"""Ulysses sequence parallelism: load_checkpoint raises IndexError on every rank but the first of its group.

Why: the engine uses a rank's place in its sequence-parallel group as its place in a tensor-parallel group, whose size
    it knows to be 1. It looks for the second, third, … shard of the model in a list of one: IndexError, list index out
    of range. It also puts that place into the names of ZeRO's files, so that a checkpoint of a job with another
    sequence-parallel size, or without any, has other names.
How: without tensor parallelism the model is read from its only shard. A rank reads its own ZeRO file as before; where
    it does not exist, the one with the name that it has without sequence parallelism, which later releases always use.
    What is written keeps its names. Files of experts (MoE) are looked for as before.
Workaround: Scripts replace the mpu's `get_model_parallel_rank` by a function that returns 0. You can keep it: files
    with either name are found.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"


def or_without_sequence_parallelism(engine: Any, names: list[str], directory: str, tag: str, bf16: bool) -> list[str]:
    """`names` of ZeRO's files; the name without sequence parallelism in place of one whose file does not exist."""
    if engine.mp_world_size != 1:
        return names
    others = engine._get_mp_rank_zero_checkpoint_names(directory, tag, 0, len(names), bf16)
    if any(not os.path.exists(name) and os.path.exists(other) for name, other in zip(names, others)):
        took_effect(__name__, "ZeRO's files were found under their names without sequence parallelism")
    return [other if not os.path.exists(name) and os.path.exists(other) else name for name, other in zip(names, others)]


PATCH = Patch(
    title="Ulysses sequence parallelism: load_checkpoint raises IndexError: list index out of range",
    severity=Severity.CRASH,
    # before 0.18.2 such a job has no checkpoint: save_checkpoint raises AttributeError
    affects={"deepspeed": ">=0.18.2,<0.19.6"},
    changes=(
        Edit(
            f"{_ENGINE}._load_checkpoint",
            before="load_path, checkpoint, _ = sd_loader.load(self.mp_world_size, mp_rank, "
            "is_pipe_parallel=is_pipe_parallel)",
            code="mp_rank = mp_rank if self.mp_world_size > 1 else 0",
            effect="the model's only shard was loaded (unpatched: IndexError)",
            when="self.mp_world_size == 1 and mp_rank > 0",
        ),
        Edit(
            f"{_ENGINE}._get_all_zero_checkpoint_names",
            before="return zero_ckpt_names",
            code="zero_ckpt_names = or_without_sequence_parallelism(self, zero_ckpt_names, load_dir, tag, bf16_mode)",
            uses=(or_without_sequence_parallelism,),
        ),
    ),
    symptom=r"in load\n.*load_path = self\.ckpt_list\[idx\]\n(.*\n){0,2}?.*IndexError: list index out of range",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7649": "introduced in 0.18.2",
        "https://github.com/deepspeedai/DeepSpeed/pull/8226": "fixed in 0.19.6",
    },
    fixed_in="0.19.6",
    present=(
        Source(
            "deepspeed.runtime.sequence_parallel.parallel_state_sp",
            "get_model_parallel_rank = get_sequence_parallel_rank",
        ),
    ),
    fixed=(
        Source(
            f"{_ENGINE}._load_checkpoint",
            "sd_loader.load(self.mp_world_size, self.checkpoint_mp_rank, is_pipe_parallel=is_pipe_parallel)",
        ),
        # since 0.19.7
        Source(
            f"{_ENGINE}._load_checkpoint",
            "sd_loader.load(checkpoint_mp_world_size, checkpoint_mp_rank, is_pipe_parallel=is_pipe_parallel)",
        ),
    ),
    ranks=2,
)

_LEARNING_RATE = 0.1


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    torch, models, reference = lab.torch, lab.models, lab.reference
    deepspeed = lab.deepspeed
    try:
        from deepspeed.runtime.sequence_parallel import (
            parallel_state_sp as groups,
        )
    except ImportError:
        raise CannotTell(f"{deepspeed.__version__} has no Ulysses for other models than Megatron's") from None
    if not hasattr(groups, "get_model_parallel_rank"):
        raise CannotTell(f"with {deepspeed.__version__} such a job cannot save a checkpoint")

    # both ranks have the same batch
    batches = [models.regression_batch(0, step) for step in range(2)]

    def engine(stage: int, **options: Any) -> Any:
        model = models.MLP()
        config = {
            "train_micro_batch_size_per_gpu": len(batches[0][0]),
            "optimizer": {"type": "AdamW", "params": {"lr": _LEARNING_RATE}},
            "zero_optimization": {"stage": stage},
        }
        return lab.initialize(model, config, model_parameters=model.parameters(), **options)

    def train(engine: Any, batch: Any) -> dict[str, Any]:
        inputs, targets = (each.to(lab.device) for each in batch)
        engine.backward(torch.nn.functional.mse_loss(engine(inputs), targets))
        engine.step()
        result: dict[str, Any] = lab.parameters(engine)
        return result

    without = engine(2)
    written = train(without, batches[0])
    without.save_checkpoint(str(lab.tmp), tag="without")

    reports = []
    groups.initialize_sequence_parallel(sequence_parallel_size=2)
    for stage in (2, 3):
        whole = engine(stage, mpu=groups)
        train(whole, batches[0])
        tag = f"stage{stage}"
        whole.save_checkpoint(str(lab.tmp), tag=tag)
        right = train(whole, batches[1])
        resumed = engine(stage, mpu=groups)
        try:
            resumed.load_checkpoint(str(lab.tmp), tag=tag)
        except IndexError as error:
            if "list index out of range" in str(error):
                raise BugPresent(f"ZeRO-{stage}, rank {lab.rank}: {error}") from error
            raise
        difference = reference.largest_difference(train(resumed, batches[1]), right)
        assert difference.relative < 1e-6, f"ZeRO-{stage}: resumed, {difference}"
        reports.append(f"ZeRO-{stage}: resumed, the next step is the same within {difference.relative:.1e}")
    resumed = engine(2, mpu=groups)
    resumed.load_checkpoint(str(lab.tmp), tag="without")
    difference = reference.largest_difference(lab.parameters(resumed), written)
    assert difference.relative < 1e-6, f"a checkpoint of a job without sequence parallelism: {difference}"
    reports.append("a checkpoint of a job without sequence parallelism is loaded")
    return "; ".join(reports)
