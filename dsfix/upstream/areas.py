"""The area of a patch that has no row in the table, from its id."""

from __future__ import annotations

import re

_AREAS = {
    "checkpoint": r"checkpoint_(?!params|recompute)|to_fp32|_checkpoint$|load_without",
    "scheduler": r"scheduler|warmup|cycle",
    "pipeline": r"^pipeline",
    "moe": r"^moe",
    "optimizer": r"muon|adagrad|_adam|lamb",
    "sequence": r"tiled|ulysses",
    "launcher": r"launcher|elastic|autotun",
    "import": r"^torch_|^numpy|import|extension",
    "zero++": r"^hpz|^mics|quantized",
    "offload": r"offload|nvme|twin_flow",
    "zero-3": r"^zero3",
    "zero-1/2": r"^zero",
    "precision": r"^(bf16|fp16|half|auto_precision|stage0)|autocast",
    "profiler": r"profiler|flops|comms",
}


def of(patch_id: str) -> str:
    return next((area for area, pattern in _AREAS.items() if re.search(pattern, patch_id)), "engine")
