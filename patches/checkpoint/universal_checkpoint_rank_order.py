"""`ds_to_universal` scrambles weights and moments of a checkpoint from more than 10 data-parallel ranks.

Why: the converter, and whatever else uses `DeepSpeedCheckpoint`, finds a rank's file by its place in the sorted list of
    optimizer state files. Through 0.14.0 the list is sorted as text: rank 10 comes before rank 1. Each parameter that
    is spread over several ranks is assembled from parts of other parameters. The shapes are right, so nothing fails.
How: the list is sorted by the numbers in the files' names. With at most 10 ranks it is the same list. Checkpoints are
    written as before. The converter is a separate program: use `python -m dsfix run python -m
    deepspeed.checkpoint.ds_to_universal …`.
Changes: universal checkpoints that were converted from more than 10 ranks without the patch are scrambled; the
    checkpoint itself is right: convert it again.
Workaround: Scripts sort what `get_zero_files` returns to the converter by the ranks' numbers. You can keep it.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from dsfix.patch import Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_FILES = "deepspeed.checkpoint.reshape_utils:get_zero_files"


def by_rank(files: list[str]) -> list[str]:
    """The files by the numbers in their names: data-parallel rank, then model-parallel rank."""
    if any("pp_rank_10_" in file for file in files):
        took_effect(__name__, "files were sorted by rank (unpatched: as text, 10 before 2)")
    return sorted(files, key=lambda file: [int(each) for each in re.findall(r"rank_(\d+)", os.path.basename(file))])


PATCH = Patch(
    title="ds_to_universal scrambles the weights of a checkpoint from more than 10 data-parallel ranks",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.14.1"},
    changes=(Edit(_FILES, replace="return zero_files", code="return by_rank(zero_files)", uses=(by_rank,)),),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/5283": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/5342": "fixed in 0.14.1",
    },
    fixed_in="0.14.1",
    fixed=(Source(_FILES, "return sort_zero_files(zero_files, prefix)"),),
    device="cpu",
)


def reproduce(lab: Lab) -> str:
    from ._checkpoints import ranks_in_order

    return ranks_in_order(lab, 12, "{}_")  # the name goes on with _mp_rank
