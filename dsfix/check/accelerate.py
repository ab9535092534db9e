"""accelerate's config file: the DeepSpeed config that accelerate builds from its `deepspeed_config` block.

Source: accelerate.utils.dataclasses.DeepSpeedPlugin.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

from .reading import Reading, Unreadable, read

# key of the block -> path in the DeepSpeed config
PLACES = {
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "gradient_clipping",
    "zero_stage": "zero_optimization.stage",
    "offload_optimizer_device": "zero_optimization.offload_optimizer.device",
    "offload_optimizer_nvme_path": "zero_optimization.offload_optimizer.nvme_path",
    "offload_param_device": "zero_optimization.offload_param.device",
    "offload_param_nvme_path": "zero_optimization.offload_param.nvme_path",
    "zero3_save_16bit_model": "zero_optimization.stage3_gather_16bit_weights_on_model_save",
}


@dataclass(frozen=True)
class Accelerate:
    """accelerate's file: `file` is the DeepSpeed config file that its `deepspeed_config` block names, if any.

    named: the name in the block, if that file does not exist and one next to accelerate's file was read instead.
    """

    block: dict[str, Any]
    others: dict[str, Any]
    file: str | None = None
    named: str | None = None

    @property
    def machines(self) -> int:
        machines = self.others.get("num_machines")
        return machines if isinstance(machines, int) and machines > 0 else 1

    @property
    def processes(self) -> int | None:
        """As written: the total over all machines."""
        processes = self.others.get("num_processes")
        return processes if isinstance(processes, int) and processes > 0 else None

    @property
    def world_size(self) -> int | None:
        """The number of processes that are started; None where that is not known."""
        return None if self.processes is None else self.processes // self.machines * self.machines or None


def is_accelerate(content: dict[str, Any]) -> bool:
    return "deepspeed_config" in content or "distributed_type" in content


def resolve(path: str, content: dict[str, Any]) -> tuple[Reading, Accelerate]:
    """The DeepSpeed config that accelerate uses for this file, and the file's own content. Raises Unreadable."""
    block = content.get("deepspeed_config")
    if not isinstance(block, dict) or not block:
        raise Unreadable(f"{path} has no deepspeed_config block: accelerate runs without DeepSpeed")
    others = {key: value for key, value in content.items() if key != "deepspeed_config"}
    named = block.get("deepspeed_config_file")
    if named is not None:
        file = _file(path, str(named))
        try:
            return read(file), Accelerate(block, others, file, None if file == str(named) else str(named))
        except Unreadable as error:
            raise Unreadable(f"{path}: deepspeed_config_file: {error}") from None
    return Reading(_config(block, others)), Accelerate(block, others)


def _file(path: str, named: str) -> str:
    """Returns the file that the block names, or else the one of that name next to accelerate's file.

    accelerate itself takes the name as it is, relative to the working directory. Raises Unreadable: neither exists.
    """
    beside = os.path.dirname(path)
    last = re.split(r"[\\/]", named)[-1]
    for file in (named, os.path.join(beside, named), os.path.join(beside, last)):
        if os.path.exists(file):
            return file
    raise Unreadable(f"{path}: deepspeed_config_file: neither {named} nor {os.path.join(beside, last)} exists")


def _config(block: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": block.get("zero_stage", 2)}
    for part in ("offload_optimizer", "offload_param"):
        device = block.get(f"{part}_device", "none")
        path = block.get(f"{part}_nvme_path")
        zero[part] = {"device": device, "nvme_path": path if device == "nvme" else None}
    zero["stage3_gather_16bit_weights_on_model_save"] = block.get("zero3_save_16bit_model", False)
    config: dict[str, Any] = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": block.get("gradient_accumulation_steps", "auto"),
        "gradient_clipping": block.get("gradient_clipping", "auto"),
        "zero_optimization": zero,
    }
    precision = others.get("mixed_precision")
    if precision in ("bf16", "fp16"):
        config[precision] = {"enabled": True}
    return config
