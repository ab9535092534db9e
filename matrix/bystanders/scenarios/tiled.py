"""An MLP in tiles where nothing has to be averaged over ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.bystanders.scenario import scenario
from matrix.bystanders.scenarios import reuse

if TYPE_CHECKING:
    from matrix.bystanders.job import Job


@scenario(
    "an MLP is computed in tiles, with TiledMLP, on one rank",
    pinned=[{"stage": "2", "ranks": "1"}, {"stage": "1", "ranks": "1", "overlap_comm": "true"}],
    ranks=("1",),
)
def tiled_mlp_of_one_rank(job: Job) -> None:
    reuse._steps(job, reuse._tiled(job, 2))
