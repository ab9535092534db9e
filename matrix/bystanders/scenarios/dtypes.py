"""Gradients accumulated in a dtype other than the model's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_FP16 = {"stage": "1", "precision": "fp16"}
_OVERLAP = {**_FP16, "overlap_comm": "true"}
_PINNED = [
    *({**_FP16, "ranks": ranks, "accumulation": micros} for ranks in "12" for micros in "13"),
    *({**_OVERLAP, "ranks": ranks, "accumulation": micros} for ranks in "12" for micros in "13"),
    {**_OVERLAP, "ranks": "4", "accumulation": "2", "buckets": "small", "optimizer": "AdamW"},
    *({**_OVERLAP, "ranks": ranks, "accumulation": "2", "offload": "optimizer"} for ranks in "12"),
    {**_OVERLAP, "precision": "bf16", "accumulation": "2", "offload": "optimizer"},
]


@scenario("half precision, with gradients accumulated in fp32", pinned=_PINNED, stage="1", precision=("fp16",))
def accumulated_in_fp32(job: Job) -> None:
    engine = job.engine(job.MLP(), data_types={"grad_accum_dtype": "fp32"})
    for step in range(4):
        job.train(engine, step)
