"""Config defaults that depend on the DeepSpeed release."""

from __future__ import annotations

import dataclasses
from typing import Any

from packaging.version import Version

from dsfix.audit.plan import Plan


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
