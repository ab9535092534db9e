"""`init_inference` that shards a model with a fused attention weight (AutoTP), without a bug in its order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_FITS: Any = {
    "stage": "0",
    "offload": ("none",),
    "precision": ("fp32",),
    "partitioning": ("parameters persist",),
    "ranks": ("2",),
    "accumulation": ("1",),
    "optimizer": ("SGD",),
    "clipping": ("off",),
}


def _passed(job: Job, model: str, layer: str, groups: int, by_group: bool) -> None:
    from dsfix.lab import autotp

    names = ("self_attn", "query_key_value", "out_proj", "mlp", "up_proj", "down_proj")
    whole = autotp.causal(autotp.Kind(model, layer, *names, groups, by_group))
    found: Any = whole if job.plain else autotp.shard(job._lab, whole)
    for number in range(2):
        job.note(f"pass {number}", autotp.outputs(found)["output"])


@scenario("sharded inference of BLOOM's layer", pinned=[{}], **_FITS)
def sharded_bloom(job: Job) -> None:
    _passed(job, "Bloom", "BloomBlock", 8, True)


@scenario("sharded inference of GLM's layer", pinned=[{}], **_FITS)
def sharded_glm(job: Job) -> None:
    _passed(job, "GLM", "GLMBlock", 8, False)


@scenario("sharded inference of a layer that no name is known for", pinned=[{}], **_FITS)
def sharded_unknown(job: Job) -> None:
    _passed(job, "Other", "OtherBlock", 2, True)
