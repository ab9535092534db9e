"""`init_inference` that shards layers whose class is a DecoderLayer, with fused weights in the order of BLOOM's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.bystanders.scenario import scenario
from matrix.bystanders.scenarios import sharded_inference

if TYPE_CHECKING:
    from matrix.bystanders.job import Job


@scenario("sharded inference of a DecoderLayer, as Falcon's own code names it", pinned=[{}], **sharded_inference._FITS)
def sharded_decoder_by_heads(job: Job) -> None:
    sharded_inference._passed(job, "RW", "DecoderLayer", 8, True)


@scenario(
    "sharded inference of a DecoderLayer, as Falcon's own code names it, with two groups",
    pinned=[{}],
    **sharded_inference._FITS,
)
def sharded_decoder_by_groups(job: Job) -> None:
    sharded_inference._passed(job, "RW", "DecoderLayer", 2, True)
