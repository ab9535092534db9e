"""The phases of a Plan: what is saved at half of the steps, and what goes on from there. Importing this imports torch.

The job that trains calls `save` on all ranks after half of the steps, and trains on. Each phase that loads is a job of
fresh processes, as a user's would be: it calls `prepare` before its engine is made, and `load` before its first step.
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

from dsfix.audit import moe
from dsfix.audit.plan import Plan
from dsfix.audit.rank import Seen
from dsfix.lab.accelerator import deepspeed_version
from dsfix.lab.checkpoints import convert_to_universal
from dsfix.lab.session import Lab

#: Phases that are jobs of their own.
LOADING = ("resume", "universal")

_CLIENT_STATE = {"audit": "saved at half of the steps"}


def save(lab: Lab, plan: Plan, engine: Any, root: Path, seen: Seen) -> None:
    """Save what the plan's phases need below `root`, and export. All ranks call it.

    Rank 0 writes to phases.json there which phases can be loaded; why others cannot goes to `seen`, as exports do.
    """
    if set(plan.phases) - {"16bit"}:
        engine.save_checkpoint(str(root), client_state=dict(_CLIENT_STATE))
    if "16bit" in plan.phases:
        _save_16bit(lab, plan, engine, root, seen)
    if lab.rank == 0:
        if "zero_to_fp32" in plan.phases:
            _zero_to_fp32(plan, root, seen)
        loadable = [phase for phase in LOADING if phase in plan.phases]
        if "universal" in loadable and (why := _no_universal(plan, root)):
            seen.unseen["universal"] = why
            loadable.remove("universal")
        (root / "phases.json").write_text(json.dumps(loadable), encoding="utf-8")
    lab.torch.distributed.barrier()


def _no_universal(plan: Plan, root: Path) -> str:
    """Why this DeepSpeed makes no universal checkpoint of what was saved, in a sentence; "" where it does."""
    if not _has_optimizer_files(root):
        return "without ZeRO a checkpoint has no *_optim_states.pt, which ds_to_universal reads"
    if not hasattr(import_module("deepspeed.checkpoint.ds_to_universal"), "_inject_missing_state"):
        version = deepspeed_version()
        return (
            f"ds_to_universal of deepspeed {version} needs universal_checkpoint_info, which only Megatron's models set"
        )
    if plan.universal_ranks % plan.ep_size:
        return f"experts that are shared by {plan.ep_size} ranks cannot be loaded by {plan.universal_ranks}"
    if plan.accumulation * plan.ranks % plan.universal_ranks:
        shared = f"the {plan.accumulation * plan.ranks} micro-batches of a step"
        return f"{shared} cannot be shared by {plan.universal_ranks} ranks"
    return ""


def prepare(lab: Lab, plan: Plan, root: Path, phase: str) -> Mapping[str, Any]:
    """The config for the engine of `phase`: the same batch on its ranks. All ranks call it."""
    config = dict(plan.config)
    if phase == "universal":
        convert_to_universal(lab, root, _tag(root))
        config["checkpoint"] = {**config.get("checkpoint", {}), "load_universal": True}
        config["gradient_accumulation_steps"] = plan.accumulation * plan.ranks // plan.universal_ranks
        config["train_micro_batch_size_per_gpu"] = plan.micro_batch
    return config


def load(engine: Any, root: Path) -> None:
    """Load what `save` left. All ranks call it. Raises AssertionError where the engine says that it found nothing."""
    path, client_state = engine.load_checkpoint(str(root))
    assert path is not None, "load_checkpoint found no checkpoint"
    lost = {name: value for name, value in _CLIENT_STATE.items() if client_state.get(name) != value}
    assert not lost, f"load_checkpoint lost of the client state {lost}"


def _save_16bit(lab: Lab, plan: Plan, engine: Any, root: Path, seen: Seen) -> None:
    if not engine.save_16bit_model(str(root / "16bit")):
        why = "save_16bit_model does nothing under ZeRO-3 unless stage3_gather_16bit_weights_on_model_save is on"
        seen.unseen["16bit"] = why
    elif lab.rank == 0:
        seen.exports["16bit"] = moe.global_names(_tensors(root / "16bit" / "pytorch_model.bin"), plan, lab)


def _zero_to_fp32(plan: Plan, root: Path, seen: Seen) -> None:
    """By DeepSpeed's function, and by the script that it has put into the checkpoint."""
    if plan.moe:
        seen.unseen["zero_to_fp32"] = "it reads no checkpoint with experts, which have files of their own"
        return
    if not _has_optimizer_files(root):
        seen.unseen["zero_to_fp32"] = "without ZeRO a checkpoint has no *_optim_states.pt, which zero_to_fp32 reads"
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
        seen.unseen["zero_to_fp32.py"] = f"{error}, which the script needs"
    except Exception:
        seen.errors["zero_to_fp32.py"] = traceback.format_exc()


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return found


def _tag(root: Path) -> str:
    return (root / "latest").read_text(encoding="utf-8").strip()


def _has_optimizer_files(root: Path) -> bool:
    return any((root / _tag(root)).glob("*_optim_states.pt"))
