"""What a config leaves open and a DeepSpeed release settles in its own way."""

from __future__ import annotations

import dataclasses
from typing import Any

from packaging.version import Version

from dsfix.audit.plan import Plan


def clipping(release: Version) -> float:
    """gradient_clipping where a config leaves it out. https://github.com/deepspeedai/DeepSpeed/pull/8068"""
    return 1.0 if release >= Version("0.19.3") else 0.0


def complete(plan: Plan, version: str) -> Plan:
    """The plan as DeepSpeed `version` understands it, for the reference: what it leaves open is said.

    bf16 gradients are checked for inf and nan from 0.19.3 on; warmup_max_lr was 0.001 up to 0.17.1 and is the parameter
    group's own rate since; Muon has the method "gram" from 0.19.0 on.
    """
    release = Version(version)
    config: dict[str, Any] = dict(plan.config)
    config.setdefault("gradient_clipping", clipping(release))
    for key in ("bf16", "bfloat16"):
        if key in config:
            config[key] = {"check_grad_overflow": release >= Version("0.19.3"), **config[key]}
    optimizer = config.get("optimizer") or {}
    if str(optimizer.get("type")).lower() == "muon" and release < Version("0.19.0"):
        config["optimizer"] = {**optimizer, "params": {**(optimizer.get("params") or {}), "ns_method": "standard"}}
    scheduler = config.get("scheduler") or {}
    if scheduler.get("type") == "WarmupLR" and release < Version("0.17.2"):
        config["scheduler"] = {**scheduler, "params": {"warmup_max_lr": 0.001, **scheduler.get("params", {})}}
    return dataclasses.replace(plan, config=config)
