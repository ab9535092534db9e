"""Errors in DeepSpeed's configuration."""

from __future__ import annotations

from ..signature import Signature

SIGNATURES = (
    Signature(
        id="removed_config_key",
        title="the DeepSpeed config has a removed key",
        what="0.19.7 rejects 6 keys, 0.19.8 rejects 14, even if they disable a feature.",
        remedy="Delete the key that the message names; `python -m dsfix check CONFIG` lists all of them.",
        pattern=r"DeepSpeedConfigError: [^\n]*has been removed|has been removed.*issues/8489",
        affects={"deepspeed": ">=0.19.7"},
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/8489",),
    ),
)
