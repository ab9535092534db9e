"""`ds_to_universal` scrambles weights and moments of a checkpoint from more than 100 data-parallel ranks.

Why: the converter first writes each rank's part of a parameter into a file that ends with the rank, in two digits or
    more, and then joins these files. Through 0.14.1 it sorts them as text: part 100 comes between 10 and 11. The shapes
    are right, so nothing fails. Only parameters that are spread over ranks on both sides of 100 are affected, the large
    ones.
How: the files are sorted by the rank as a number. Up to 100 ranks the order is the same. Checkpoints are written as
    before. The converter is a separate program: use `python -m dsfix run python -m deepspeed.checkpoint.ds_to_universal
    …`.
Changes: universal checkpoints that were converted from more than 100 ranks without the patch are scrambled; the
    checkpoint itself is right: convert it again.
Workaround: Scripts put their own `sorted`, which sorts by rank, into the converter's module, or replace its
    `_merge_zero_shards`. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_MERGE = "deepspeed.checkpoint.ds_to_universal:_merge_zero_shards"
_SORT = "paths = sorted(list(glob.glob(f'{prefix_path}.*')))"


PATCH = Patch(
    title="ds_to_universal scrambles the weights of a checkpoint from more than 100 data-parallel ranks",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.14.2"},
    changes=(
        Edit(
            _MERGE,
            replace=_SORT,
            # not by `sorted`, a name under which scripts put a function of their own into the module
            code="paths = list(glob.glob(f'{prefix_path}.*'))\n"
            "paths.sort(key=lambda path: int(path.rpartition('.')[2]))",
            effect="parts were joined by rank (unpatched: as text, 100 before 11)",
            # on both sides of 100
            when="{len(path.rpartition('.')[2]) > 2 for path in glob.glob(f'{prefix_path}.*')} == {False, True}",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/5283": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/5395": "fixed in 0.14.2",
    },
    fixed_in="0.14.2",
    fixed=(Source(_MERGE, "dp_indices = set()"),),
    device="cpu",
)


def reproduce(lab: Lab) -> str:
    from ._checkpoints import ranks_in_order

    return ranks_in_order(lab, 102, "{:02d}")
