"""The phases of a Plan: saving after half of the steps, and continuing from there. Importing this imports torch.

The training job calls `save` on all ranks after half of the steps and continues. Each loading phase is a job of fresh
processes, like a user's: it calls `prepare` before creating its engine, and `load` before its first step.
"""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import sys
import traceback
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from dsfix.audit.agreement import RankObservations
from dsfix.audit.plan import Plan
from dsfix.lab.accelerator import deepspeed_version
from dsfix.lab.session import Lab
from dsfix.lab.universal import convert_to_universal

#: Phases that run as separate jobs.
LOADING = ("resume", "universal")

_CLIENT_STATE = {"audit": "saved after half of the steps"}


def save(lab: Lab, plan: Plan, engine: Any, root: Path, seen: RankObservations) -> None:
    """Saves what the plan's phases need below `root`, and exports. All ranks call it.

    Rank 0 writes the phases that can be loaded to phases.json there. `seen` gets the exports, and why a phase cannot
    run.
    """
    if set(plan.phases) - {"16bit"}:
        engine.save_checkpoint(str(root), client_state=dict(_CLIENT_STATE))
    if "16bit" in plan.phases:
        _save_16bit(lab, engine, root, seen)
    if lab.rank == 0:
        if "zero_to_fp32" in plan.phases:
            _zero_to_fp32(root, seen)
        loadable = [phase for phase in LOADING if phase in plan.phases]
        if "universal" in loadable and (why := _no_universal(plan, root)):
            seen.not_compared["universal"] = why
            loadable.remove("universal")
        (root / "phases.json").write_text(json.dumps(loadable), encoding="utf-8")
    lab.torch.distributed.barrier()


def _no_universal(plan: Plan, root: Path) -> str:
    """Returns why this DeepSpeed cannot make a universal checkpoint of what was saved; "" if it can."""
    if not _has_optimizer_files(root):
        return "without ZeRO a checkpoint has no *_optim_states.pt, which ds_to_universal reads"
    if not hasattr(import_module("deepspeed.checkpoint.ds_to_universal"), "_inject_missing_state"):
        version = deepspeed_version()
        return f"ds_to_universal of deepspeed {version} needs universal_checkpoint_info, which only Megatron models set"
    if plan.accumulation * plan.ranks % plan.universal_ranks:
        shared = f"the {plan.accumulation * plan.ranks} micro-batches of a step"
        return f"{shared} cannot be divided among {plan.universal_ranks} ranks"
    return ""


def prepare(lab: Lab, plan: Plan, root: Path, phase: str) -> Mapping[str, Any]:
    """Returns the config for the engine of `phase`: the same global batch on its ranks. All ranks call it."""
    config = dict(plan.config)
    if phase == "universal":
        convert_to_universal(lab, root, _tag(root))
        config["checkpoint"] = {**config.get("checkpoint", {}), "load_universal": True}
        config["gradient_accumulation_steps"] = plan.accumulation * plan.ranks // plan.universal_ranks
        config["train_micro_batch_size_per_gpu"] = plan.micro_batch
    return config


def load(engine: Any, root: Path) -> None:
    """Loads what `save` wrote. All ranks call it. Raises AssertionError if the engine does not find or restore it."""
    path, client_state = engine.load_checkpoint(str(root))
    assert path is not None, "load_checkpoint found no checkpoint"
    lost = {name: value for name, value in _CLIENT_STATE.items() if client_state.get(name) != value}
    assert not lost, f"load_checkpoint lost {lost} of the client state"


def _save_16bit(lab: Lab, engine: Any, root: Path, seen: RankObservations) -> None:
    if not engine.save_16bit_model(str(root / "16bit")):
        why = "save_16bit_model does nothing under ZeRO-3 unless stage3_gather_16bit_weights_on_model_save is on"
        seen.not_compared["16bit"] = why
    elif lab.rank == 0:
        seen.exports["16bit"] = _tensors(root / "16bit" / "pytorch_model.bin")


def _zero_to_fp32(root: Path, seen: RankObservations) -> None:
    """Exports by DeepSpeed's function, and by the script that it wrote into the checkpoint."""
    if not _has_optimizer_files(root):
        seen.not_compared["zero_to_fp32"] = (
            "without ZeRO a checkpoint has no *_optim_states.pt, which zero_to_fp32 reads"
        )
        return
    try:
        function = import_module("deepspeed.utils.zero_to_fp32").get_fp32_state_dict_from_zero_checkpoint
        with contextlib.redirect_stdout(io.StringIO()):
            seen.exports["zero_to_fp32"] = {name: tensor.clone() for name, tensor in function(str(root)).items()}
    except Exception:
        seen.errors["zero_to_fp32"] = traceback.format_exc()
    out = root / "fp32"
    try:
        script = str(root / "zero_to_fp32.py")
        with mock.patch.object(sys, "argv", [script, str(root), str(out)]), contextlib.redirect_stdout(io.StringIO()):
            runpy.run_path(script, run_name="__main__")
        seen.exports["zero_to_fp32.py"] = _tensors(out / "pytorch_model.bin" if out.is_dir() else out)
    except ModuleNotFoundError as error:
        seen.not_compared["zero_to_fp32.py"] = f"{error}, which the script needs"
    except Exception:
        seen.errors["zero_to_fp32.py"] = traceback.format_exc()


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    state_dict: dict[str, torch.Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return state_dict


def _tag(root: Path) -> str:
    return (root / "latest").read_text(encoding="utf-8").strip()


def _has_optimizer_files(root: Path) -> bool:
    return any((root / _tag(root)).glob("*_optim_states.pt"))
