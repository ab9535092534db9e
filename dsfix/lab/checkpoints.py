"""What reproductions about checkpoints on disk share."""

from __future__ import annotations

import argparse
import os
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from packaging.version import Version

from dsfix.lab.accelerator import deepspeed_version
from dsfix.lab.session import Lab
from dsfix.patch import CannotTell


def train(lab: Lab, engine: Any, batches: Sequence[Sequence[Any]]) -> None:
    """One step of `engine` with each batch of an MLP."""
    mse_loss = lab.torch.nn.functional.mse_loss
    for inputs, targets in batches:
        engine.backward(mse_loss(engine(inputs.to(lab.device)), targets.to(lab.device)))
        engine.step()


def refused(error: UnpicklingError, module: str) -> str:
    """What torch.load's weights-only mode has refused, where `module` (a file's name) called it; else ""."""
    if not any(frame.filename.endswith(f"/{module}.py") for frame in traceback.extract_tb(error.__traceback__)):
        return ""
    if "Weights only load failed" not in str(error):
        return ""
    unsupported = [line for line in str(error).splitlines() if "Unsupported " in line]
    return " ".join((unsupported or ["Weights only load failed"])[0].partition(" was not an allowed")[0].split())


def require_universal_zero3() -> None:
    """Raise CannotTell where this DeepSpeed has no universal checkpoint of ZeRO-3. Call it first."""
    version = deepspeed_version()
    if Version(version) < Version("0.14.5"):
        raise CannotTell(f"deepspeed {version} has no universal checkpoint of ZeRO-3")
    load_whole_files()


def load_whole_files() -> None:
    """Let torch >= 2.6 load what releases up to 0.15.4 have saved, a fault of its own. Call it first."""
    os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"


def convert_to_universal(lab: Lab, root: Path, tag: str) -> str:
    """Convert the checkpoint `tag` below `root` on rank 0, with DeepSpeed's tool; the other ranks wait. The new tag."""
    converted = f"{tag}_universal"
    lab.torch.distributed.barrier()
    if lab.rank == 0:
        from deepspeed.checkpoint import ds_to_universal  # type: ignore[import-not-found,unused-ignore]

        ds_to_universal.main(
            argparse.Namespace(
                input_folder=str(root / tag),
                output_folder=str(root / converted),
                num_extract_workers=1,
                num_merge_workers=1,
                keep_temp_folder=False,
                strict=True,
                inject_missing_state=True,
            )
        )
    lab.torch.distributed.barrier()
    return converted


@dataclass(frozen=True)
class Resumed:
    """An engine that has loaded a universal checkpoint after half the steps.

    rest: the batches of the other half. initial: the parameters before the load. half, whole: plain PyTorch's after
    half the steps and after all.
    """

    engine: Any
    rest: Sequence[Sequence[Any]]
    initial: dict[str, Any]
    half: dict[str, Any]
    whole: dict[str, Any]


def resume_in_sub_groups(lab: Lab, steps: int, sub_group_size: int) -> Resumed:
    """Train with ZeRO-3, torch's AdamW and one sub-group, and load the checkpoint into an engine that has several."""
    require_universal_zero3()
    _ = lab.torch
    from dsfix.lab import models, reference

    batches = [models.regression_batch(rank=0, step=step) for step in range(steps)]
    options = {"lr": 0.01, "weight_decay": 0.0}

    def expected(count: int) -> dict[str, Any]:
        model = models.MLP()
        done = reference.train(model, [[batch] for batch in batches[:count]], model.loss, "AdamW", **options)
        return done.parameters

    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "AdamW", "params": options},
        "zero_optimization": {"stage": 3},
    }
    model = models.MLP()
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    train(lab, engine, batches[: steps // 2])
    engine.save_checkpoint(str(lab.tmp), tag="half")
    tag = convert_to_universal(lab, lab.tmp, "half")

    model = models.MLP(seed=1)
    initial = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    config["checkpoint"] = {"load_universal": True}
    config["zero_optimization"] = {"stage": 3, "sub_group_size": sub_group_size}
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    assert len(engine.optimizer.fp16_groups) > 2, "too few sub-groups"
    engine.load_checkpoint(str(lab.tmp), tag=tag)
    return Resumed(engine, batches[steps // 2 :], initial, expected(steps // 2), expected(steps))
