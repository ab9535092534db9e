"""TiledLoss: a tile of one token fails, in a batch of one sample.

Why: TiledLoss removes all dimensions of size 1 from a tile's labels before it iterates over them. Of one token nothing
    is left to iterate over: TypeError, iteration over a 0-d tensor. The last tile has one token if there are three
    tokens for two tiles, or seven for three.
How: one label keeps a dimension. Nothing changes for tiles of several tokens.
Workaround: Scripts choose another number of tiles, or pad the logits, and the labels with -100. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import Edit, Patch, Severity, Source

from ._tiled_loss import trained

if TYPE_CHECKING:
    from dsfix.lab import Lab

_MODULE = "deepspeed.runtime.sequence_parallel.ulysses_sp"


def _of_one(function: str, comparison: str) -> Edit:
    labels = f"(shift_labels_shard {comparison} -100).squeeze()"
    return Edit(
        f"{_MODULE}:TiledLoss.{function}",
        replace=labels,
        code=f"torch.atleast_1d({labels})",
        effect="a tile of one token was computed (unpatched: TypeError)",
        when="shift_labels_shard.numel() == 1",
    )


PATCH = Patch(
    title="TiledLoss, a tile of one token: TypeError, iteration over a 0-d tensor",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.17.0,<0.19.8"},
    changes=(_of_one("forward", "=="), _of_one("forward", "!="), _of_one("backward", "==")),
    symptom=r"ulysses_sp\.py\S*, line \d+, in forward\n(.*\n)*TypeError: iteration over a 0-d tensor",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7268": "introduced in 0.17.0",
    },
    fixed_in="0.19.8",
    # 0.19.8 has no TiledLoss: something else that it has, and no release before it
    fixed=(
        Source(
            f"{_MODULE}:UlyssesSPAttentionHF.register_with_transformers",
            'model_was_loaded = hasattr(model_name_or_path, "config") or '
            "isinstance(model_name_or_path, PreTrainedModel)",
        ),
    ),
)


def reproduce(lab: Lab) -> str:
    expected = TypeError, "iteration over a 0-d tensor"
    return "; ".join(trained(lab, length, 0, 3, *expected) for length in (6, 3))
