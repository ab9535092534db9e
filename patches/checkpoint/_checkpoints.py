"""Shared code of reproductions about checkpoints on disk."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from pickle import UnpicklingError
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

from packaging.version import Version

from dsfix.lab.accelerator import deepspeed_version
from dsfix.lab.session import Lab
from dsfix.lab.universal import convert_to_universal
from dsfix.patch import BugPresent, CannotTell

NOT_IN_FLOAT32 = 2**24 + 1  # the first integer that it does not hold


def train(lab: Lab, engine: Any, batches: Sequence[Sequence[Any]]) -> None:
    """Makes one step of `engine` with each batch, for an MLP."""
    mse_loss = lab.torch.nn.functional.mse_loss
    for inputs, targets in batches:
        engine.backward(mse_loss(engine(inputs.to(lab.device)), targets.to(lab.device)))
        engine.step()


def refused(error: UnpicklingError, module: str) -> str:
    """What torch.load refused in weights-only mode when `module` (a file name) called it; else ""."""
    if not any(frame.filename.endswith(f"/{module}.py") for frame in traceback.extract_tb(error.__traceback__)):
        return ""
    if "Weights only load failed" not in str(error):
        return ""
    unsupported = [line for line in str(error).splitlines() if "Unsupported " in line]
    return " ".join((unsupported or ["Weights only load failed"])[0].partition(" was not an allowed")[0].split())


def require_universal_zero3() -> None:
    """Raises CannotTell if this DeepSpeed has no universal checkpoint for ZeRO-3. Call it first."""
    version = deepspeed_version()
    if Version(version) < Version("0.14.5"):
        raise CannotTell(f"deepspeed {version} has no universal checkpoint for ZeRO-3")
    load_whole_files()


def load_whole_files() -> None:
    """Lets torch >= 2.6 load checkpoints saved by releases through 0.15.4, a separate bug. Call it first."""
    os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"


def written_by_zero_to_fp32(torch: Any, root: Path) -> dict[str, Any]:
    """What zero_to_fp32 writes from the checkpoint `saved` in `root`, in one file; uninitialized memory is nan."""
    try:
        from deepspeed.utils import zero_to_fp32
    except ModuleNotFoundError as error:
        raise CannotTell(f"zero_to_fp32 cannot be imported: {error}") from error
    convert = zero_to_fp32.convert_zero_checkpoint_to_fp32_state_dict
    out = root / "fp32"
    into_directory = "output_dir" in signature(convert).parameters
    if into_directory:
        out.mkdir()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with mock.patch.dict(sys.modules, huggingface_hub=_hub()):
            convert(str(root), str(out), tag="saved")
    finally:
        torch.use_deterministic_algorithms(False)
    written: dict[str, Any] = torch.load(out / "pytorch_model.bin" if into_directory else out)
    return written


def _hub() -> Any:
    """A stand-in for huggingface_hub, which tells zero_to_fp32 how to split the weights into files: one file."""

    def split(state_dict: dict[str, Any], filename_pattern: str, **_: Any) -> Any:
        return SimpleNamespace(
            is_sharded=False, filename_to_tensors={filename_pattern.format(suffix=""): list(state_dict)}
        )

    module = ModuleType("huggingface_hub")
    module.split_torch_state_dict_into_shards = split  # type: ignore[attr-defined]
    return module


@dataclass(frozen=True)
class Resumed:
    """An engine that loaded a universal checkpoint after half the steps.

    rest: the batches of the second half. initial: the parameters before loading. half, whole: the parameters of plain
    PyTorch after half the steps and after all.
    """

    engine: Any
    rest: Sequence[Sequence[Any]]
    initial: dict[str, Any]
    half: dict[str, Any]
    whole: dict[str, Any]


def resume_in_sub_groups(lab: Lab, steps: int, sub_group_size: int) -> Resumed:
    """Trains with ZeRO-3, torch's AdamW and one sub-group, and loads the checkpoint into an engine with several."""
    require_universal_zero3()
    models, reference = lab.models, lab.reference
    batches = [models.regression_batch(rank=0, step=step) for step in range(steps)]
    options = {"lr": 0.01, "weight_decay": 0.0}

    def expected(count: int) -> dict[str, Any]:
        model = models.MLP()
        done = reference.train(model, [[batch] for batch in batches[:count]], model.loss, "AdamW", **options)
        parameters: dict[str, Any] = done.parameters
        return parameters

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


def resume_pipeline(
    lab: Lab, layers: Sequence[Any], batches: Sequence[Any], others: Sequence[Any], options: Any, **info: Any
) -> Any:
    """Trains a pipeline of one stage with ZeRO-1 and torch's AdamW; returns one of `others` that resumes from it.

    batches: (inputs, targets) of the steps before the checkpoint, which is converted to a universal one. options: of
    AdamW. info: more of the universal checkpoint's info. Raises CannotTell where loading one fails.
    """
    load_whole_files()
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "AdamW", "params": {**options, "torch_adam": True}},
        "zero_optimization": {"stage": 1},
    }

    def start(each: Sequence[Any]) -> Any:
        loss = lab.torch.nn.functional.mse_loss
        module = lab.deepspeed.pipe.PipelineModule(layers=list(each), num_stages=1, loss_fn=loss)
        return lab.initialize(module, config, model_parameters=list(module.parameters()))

    engine = start(layers)
    for batch in batches:
        engine.train_batch(iter([batch]))
    state = {"universal_checkpoint_info": {"universal_checkpoint_version": 0.2, **info}, "iteration": len(batches)}
    engine.save_checkpoint(str(lab.tmp), tag="saved", client_state=state)
    _run_ds_to_universal(lab.tmp / "saved", lab.tmp / "universal")
    config["checkpoint"] = {"load_universal": True}
    engine = start(others)
    try:
        engine.load_checkpoint(str(lab.tmp), tag="universal")
    except AttributeError as error:
        if str(error) == "'NoneType' object has no attribute 'keys'":
            raise CannotTell(f"deepspeed {lab.deepspeed.__version__} fails before: {error}") from error
        raise
    return engine


def _run_ds_to_universal(given: Path, output: Path) -> None:
    from deepspeed.checkpoint import ds_to_universal

    words = ["--input_folder", str(given), "--output_folder", str(output), "--num_extract_workers", "1"]
    with mock.patch.object(sys, "argv", ["ds_to_universal.py", *words, "--num_merge_workers", "1"]):
        ds_to_universal.main(*[ds_to_universal.parse_arguments()] * len(signature(ds_to_universal.main).parameters))


def _converted_from(lab: Lab, ranks: int) -> tuple[Any, Any]:
    """A parameter of a ZeRO-1 checkpoint as it was saved, and as DeepSpeed's tool writes it where the checkpoint is
    that of so many ranks. Each of them has two elements of it.

    The checkpoint is written by one rank; here its partition is cut into those of the ranks.
    """
    load_whole_files()
    torch = lab.torch
    model = torch.nn.Linear(2 * ranks, 1, bias=False)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
        "zero_optimization": {"stage": 1},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    engine.backward(engine(torch.arange(2.0 * ranks, device=lab.device)[None]).sum())
    engine.step()
    saved = model.weight.detach().cpu().clone()
    state = {"universal_checkpoint_info": {"universal_checkpoint_version": 0.2}, "iteration": 1}
    engine.save_checkpoint(str(lab.tmp), tag="saved", client_state=state)
    _cut(torch, lab.tmp / "saved", ranks)

    output = lab.tmp / "universal"
    _run_ds_to_universal(lab.tmp / "saved", output)
    return saved, torch.load(output / "zero" / "weight" / "fp32.pt")["param"]


def ranks_in_order(lab: Lab, ranks: int, as_text: str) -> str:
    """What was converted exactly by DeepSpeed's tool for universal checkpoints, from a checkpoint of so many ranks.

    Raises BugPresent if the parts are joined in the order of the ranks' numbers as text, by this format.
    """
    saved, converted = _converted_from(lab, ranks)
    torch = lab.torch
    if torch.equal(converted, saved):
        return f"the weights of {ranks} ranks are converted exactly"
    order = sorted(range(ranks), key=as_text.format)
    scrambled = torch.cat([saved[:, 2 * rank : 2 * rank + 2] for rank in order], dim=1)
    assert torch.equal(converted, scrambled), converted
    place = next(place for place, rank in enumerate(order) if rank != place)
    raise BugPresent(f"of {ranks} ranks the part of rank {order[place]} is put behind that of rank {order[place - 1]}")


def _cut(torch: Any, directory: Path, ranks: int) -> None:
    (whole,) = directory.glob("*zero_pp_rank_0_mp_rank_00_optim_states.pt")
    for rank in range(ranks):
        content = torch.load(whole, map_location="cpu")
        optimizer = content["optimizer_state_dict"]

        def part(tensor: Any, rank: int = rank) -> Any:
            return tensor[2 * rank : 2 * rank + 2].clone() if tensor.dim() else tensor

        (mapping,) = optimizer["param_slice_mappings"]
        for name, address in mapping.items():
            mapping[name] = type(address)(numel=2, start=0)
        optimizer["single_partition_of_fp32_groups"] = list(map(part, optimizer["single_partition_of_fp32_groups"]))
        moments = optimizer["base_optimizer_state"]["state"][0]
        optimizer["base_optimizer_state"]["state"][0] = {
            key: part(value) if torch.is_tensor(value) else value for key, value in moments.items()
        }
        optimizer["group_paddings"], optimizer["partition_count"] = [0], [ranks]
        torch.save(content, directory / f"{whole.name.replace('rank_0_', f'rank_{rank}_', 1)}.new")
    for file in directory.glob("*.new"):
        file.rename(file.with_suffix(""))
    for layer in range(1, 4):  # older releases know checkpoints of pipelines only
        torch.save({}, directory / f"layer_0{layer}-model_00-model_states.pt")
