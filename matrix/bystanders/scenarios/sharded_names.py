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


def _attention(job: Job, from_weights: bool) -> Any:
    """MPT's, which notes its sizes under the names of its own code.

    from_weights: whether the forward pass takes its sizes from what the weights give, not from those names.
    """
    from dsfix.lab import autotp

    nn = job.torch.nn

    def forward(self: Any, x: Any) -> Any:
        fused = self.Wqkv(x)
        width = fused.shape[2] // 3 if from_weights else self.d_model
        each = width if from_weights else self.kv_n_heads * self.head_dim
        queries, keys, values = (
            part.unflatten(2, (-1, self.head_dim)).transpose(1, 2) for part in fused.split([width, each, each], dim=2)
        )
        mixed = (queries @ keys.transpose(-1, -2)).softmax(dim=-1) @ values
        return self.out_proj(mixed.transpose(1, 2).flatten(2))

    made = job.model(
        forward,
        Wqkv=nn.Linear(autotp.WIDTH, 3 * autotp.WIDTH, bias=False),
        out_proj=nn.Linear(autotp.WIDTH, autotp.WIDTH, bias=False),
    )
    made.d_model, made.n_heads, made.kv_n_heads = autotp.WIDTH, autotp.HEADS, autotp.HEADS  # type: ignore[assignment,unused-ignore]
    made.head_dim = autotp.WIDTH // autotp.HEADS  # type: ignore[assignment,unused-ignore]
    return made


def _mpt(job: Job, from_weights: bool) -> Any:
    from dsfix.lab import autotp

    made = autotp.causal(autotp.MPT)
    job.torch.manual_seed(1)
    made.transformer.h[0].attn = _attention(job, from_weights)
    return made.eval()


@scenario("sharded inference of an MPT whose attention notes kv_n_heads, and needs it", pinned=[{}], **_FITS)
def sharded_mpt_by_names(job: Job) -> None:
    _passed(job, _mpt(job, from_weights=False))


@scenario(
    "sharded inference of an MPT whose attention notes kv_n_heads, and needs only its weights", pinned=[{}], **_FITS
)
def sharded_mpt_by_weights(job: Job) -> None:
    _passed(job, _mpt(job, from_weights=True))
