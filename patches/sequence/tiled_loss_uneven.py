"""TiledLoss: the backward pass fails if the tiles do not divide the sequence.

Why: the last tile is then shorter, as the documentation of TiledLoss allows. Its backward pass takes the length of the
    first tile for all, and raises RuntimeError: start (3) + length (3) exceeds dimension size (5).
How: each tile takes its own length. With tiled_loss_unweighted, which is on by default, the gradient is that of the
    loss.
Workaround: Scripts pad the logits and the labels, with -100, to a multiple of the tiles. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import Edit, Patch, Severity, Source

from ._tiled_loss import trained

if TYPE_CHECKING:
    from dsfix.lab import Lab

_MODULE = "deepspeed.runtime.sequence_parallel.ulysses_sp"
_BACKWARD = f"{_MODULE}:TiledLoss.backward"

PATCH = Patch(
    title="TiledLoss of a sequence that the tiles do not divide: RuntimeError, start + length exceeds dimension size",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.17.3,<0.19.8"},
    changes=(
        Edit(
            _BACKWARD,
            replace="logits_grad.narrow(1, shard_offset, shard_step)",
            code="logits_grad.narrow(1, shard_offset, logits_shard.shape[1])",
            effect="a shorter tile got its own gradient (unpatched: RuntimeError)",
            when="logits_shard.shape[1] != shard_step",
        ),
    ),
    symptom=r"logits_grad\.narrow\(.*\n(.*\n){0,2}RuntimeError: start \(\d+\) \+ length \(\d+\) exceeds dimension size",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7412": "introduced in 0.17.3",
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
    expected = RuntimeError, "exceeds dimension size"
    # the tiles have as many labels each, which only tiled_loss_unweighted does not need
    return "; ".join(trained(lab, length, masked, 2, *expected) for length, masked in ((4, 0), (5, 1)))
