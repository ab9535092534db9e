"""DeepSpeed's conversion to universal checkpoints."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsfix.lab.session import Lab


def convert_to_universal(lab: Lab, root: Path, tag: str) -> str:
    """Converts the checkpoint `tag` in `root` with DeepSpeed's tool on rank 0; the others wait. Returns the new tag."""
    converted = f"{tag}_universal"
    lab.torch.distributed.barrier()
    if lab.rank == 0:
        from deepspeed.checkpoint import ds_to_universal

        ds_to_universal.main(
            argparse.Namespace(
                input_folder=str(root / tag),
                output_folder=str(root / converted),
                num_extract_workers=1,
                num_merge_workers=1,
                keep_temp_folder=False,
                strict=True,
                inject_missing_state=True,
            )
        )
    lab.torch.distributed.barrier()
    return converted
