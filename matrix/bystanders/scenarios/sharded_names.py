"""`init_inference` that shards models by the name of their layer, or whose sizes have MPT's names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario
from matrix.bystanders.scenarios import sharded_inference

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_FITS = sharded_inference._FITS


@scenario("sharded inference of MPT's layer", pinned=[{}], **_FITS)
def sharded_mpt(job: Job) -> None:
    from dsfix.lab import autotp

    _passed(job, autotp.causal(autotp.MPT))


@scenario("sharded inference of Persimmon's layer", pinned=[{}], **_FITS)
def sharded_persimmon(job: Job) -> None:
    from dsfix.lab import autotp

    names = ("self_attn", "query_key_value", "out_proj", "mlp", "up_proj", "down_proj")
    _passed(job, autotp.causal(autotp.Kind("Persimmon", "PersimmonDecoderLayer", *names, 8, True)))


def _passed(job: Job, whole: Any) -> None:
    from dsfix.lab import autotp

    found: Any = whole if job.plain else autotp.shard(job._lab, whole)
    for number in range(2):
        job.note(f"pass {number}", autotp.outputs(found)["output"])


@scenario("sharded inference of an MPT whose attention notes kv_n_heads, and needs it", pinned=[{}], **_FITS)
def sharded_mpt_by_names(job: Job) -> None:
    from dsfix.lab import autotp

    _passed(job, autotp.noting_mpt())


@scenario(
    "sharded inference of an MPT whose attention notes kv_n_heads, and needs only its weights", pinned=[{}], **_FITS
)
def sharded_mpt_by_weights(job: Job) -> None:
    from dsfix.lab import autotp

    _passed(job, autotp.noting_mpt(from_weights=True))
