"""Sections of the config that current releases have removed."""

from __future__ import annotations

from ..fact import Fact

FACTS = (
    Fact(
        id="at_removed_keys",
        names=("deepspeed/runtime/config.py:_reject_removed_config_keys",),
        title="the config has a section that this release removed",
        what="0.19.7 refuses nebula, compression_training, quantize_training, sparse_attention and MiCS; 0.19.8 also "
        "amp, sparse_gradients, eigenvalue, elasticity, graph_harvesting, curriculum_learning (top level), "
        'progressive_layer_drop and zeropp_loco_param; also with "enabled": false.',
        remedy="Delete the key, or DeepSpeed 0.19.6; `python -m dsfix check CONFIG` lists them.",
        affects={"deepspeed": ">=0.19.7"},
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/8489",),
    ),
)
