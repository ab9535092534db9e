"""What DeepSpeed says of its configuration."""

from __future__ import annotations

from ..signature import Signature

SIGNATURES = (
    Signature(
        id="removed_config_key",
        title="the DeepSpeed config has a key that was removed",
        what="0.19.7 rejects 6 keys, 0.19.8 14, also where they switch something off.",
        remedy="Delete the key that the message names; `python -m dsfix check CONFIG` names all of them.",
        pattern=r"DeepSpeedConfigError: [^\n]*has been removed|has been removed.*issues/8489",
        affects={"deepspeed": ">=0.19.7"},
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/8489",),
    ),
)
