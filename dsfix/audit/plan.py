"""What one audit trains: all that the ranks and the reference have to agree on, as plain JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from packaging.version import Version

#: What happens after half of the steps; each is compared with the uninterrupted training.
PHASES = ("resume", "universal", "zero_to_fp32", "16bit")
#: Width and number of parameters of the model.
WIDTH, PARAMETERS = 16, 6_500


class Unsupported(Exception):
    """The message says what the audit has no reference for, in a sentence."""


@dataclass(frozen=True)
class Plan:
    """One training, complete: the same Plan gives the same numbers.

    config: passed to deepspeed.initialize: the user's config with "auto" resolved and sizes shrunk.
    ranks: processes, all of them data-parallel. steps: optimizer steps; phases start after half of them.
    device: "cuda" (a GPU if there is one, else the emulated device) or "cpu" (DeepSpeed's CPU accelerator).
    optimizer: name of a torch.optim class that the script creates and passes to deepspeed.initialize; "" uses the
    config's. groups: several parameter groups with their own lr and weight decay, or one.
    freeze: "none", "part" (one block and one bias) or "base" (all but the adapters; requires lora).
    checkpointing: gradient checkpointing of the blocks: "none", "reentrant" or "non-reentrant".
    zero_init: the model is built under deepspeed.zero.Init. lora: the model has LoRA layers.
    left_out: one module of the model is unused in every second step.
    backwards: how a forward ends: "loss" (engine.backward), "dict" (the model returns a dictionary with the loss),
    "two" (two losses of one forward, each with its own engine.backward) or "tensor" (loss.backward()).
    skip_step: the step (from 0) whose gradients contain an inf on one rank, or None.
    schedule: of the emulated device's streams, as dsfix.lab.cuda.load names them; "": none.
    phases: those of PHASES that run. universal_ranks: ranks that load the universal checkpoint.
    """

    config: Mapping[str, Any]
    ranks: int = 2
    steps: int = 6
    device: str = "cuda"
    optimizer: str = ""
    groups: bool = True
    freeze: str = "part"
    checkpointing: str = "none"
    zero_init: bool = False
    lora: bool = False
    left_out: bool = True
    backwards: str = "loss"
    skip_step: int | None = None
    schedule: str = ""
    phases: tuple[str, ...] = field(default=PHASES)
    universal_ranks: int = 1
    seed: int = 0

    @property
    def stage(self) -> int:
        return int(self.config.get("zero_optimization", {}).get("stage", 0))

    @property
    def precision(self) -> str:
        """The dtype of the model: "fp32", "fp16" or "bf16"."""
        for name, keys in (("fp16", ("fp16",)), ("bf16", ("bf16", "bfloat16"))):
            if any(self.config.get(key, {}).get("enabled", False) for key in keys):
                return name
        return "fp32"

    @property
    def micro_batch(self) -> int:
        """Samples per forward and rank."""
        micro = self.config.get("train_micro_batch_size_per_gpu")
        if micro is None:
            micro = self.config["train_batch_size"] // (self.ranks * self.config.get("gradient_accumulation_steps", 1))
        return int(micro)

    @property
    def accumulation(self) -> int:
        """Micro-batches per step and rank."""
        steps = self.config.get("gradient_accumulation_steps")
        if steps is None and "train_batch_size" in self.config:
            steps = self.config["train_batch_size"] // (self.ranks * self.micro_batch)
        return int(steps or 1)

    @property
    def half(self) -> int:
        return self.steps // 2

    def dump(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def load(cls, text: str) -> Plan:
        content = json.loads(text)
        return cls(**{**content, "phases": tuple(content["phases"])})


def clipping(release: Version) -> float:
    """Returns the default of gradient_clipping. https://github.com/deepspeedai/DeepSpeed/pull/8068"""
    return 1.0 if release >= Version("0.19.3") else 0.0


def complete(plan: Plan, version: str) -> Plan:
    """Returns the plan with the defaults of DeepSpeed `version`, for the reference.

    bf16 gradients are checked for inf and nan since 0.19.3; warmup_max_lr defaults to 0.001 through 0.17.1, later to
    the parameter group's own rate.
    """
    release = Version(version)
    config: dict[str, Any] = dict(plan.config)
    config.setdefault("gradient_clipping", clipping(release))
    for key in ("bf16", "bfloat16"):
        if key in config:
            config[key] = {"check_grad_overflow": release >= Version("0.19.3"), **config[key]}
    scheduler = config.get("scheduler") or {}
    if scheduler.get("type") == "WarmupLR" and release < Version("0.17.2"):
        config["scheduler"] = {**scheduler, "params": {"warmup_max_lr": 0.001, **scheduler.get("params", {})}}
    return dataclasses.replace(plan, config=config)
