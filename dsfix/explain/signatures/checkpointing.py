"""Gradient checkpointing: what is computed again in the backward pass."""

from __future__ import annotations

from ..signature import Signature

SIGNATURES = (
    Signature(
        id="recomputed_empty",
        title="CheckpointError: a tensor of the forward pass has the shape [0] when it is computed again",
        what="ZeRO-3 has emptied a frozen parameter (LoRA's base model, a frozen tower) by the time that non-reentrant "
        "gradient checkpointing, with torch 2.5 or newer, compares what it has saved with what it computes again.",
        remedy="DeepSpeed 0.19.3 or newer; else ZeRO-2, or no gradient checkpointing.",
        patches=("zero3_checkpoint_recompute",),
    ),
    Signature(
        id="reentrant_shared_module",
        title="a module is used twice in one backward pass under reentrant checkpointing",
        what="Each reentrant checkpoint is a backward pass of its own: the gradients of a module that two of them use "
        "are "
        'reduced twice. ZeRO-2 says "has already been reduced", ZeRO-3 fails in a bare assertion or, with some models, '
        "computes wrong gradients without a word.",
        remedy='gradient_checkpointing_kwargs={"use_reentrant": False} (transformers), or use_reentrant=False in '
        "torch.utils.checkpoint.",
        pattern=r"has already been reduced\.\s+Gradient computed twice"
        r"|in __reduce_and_partition_ipg_grads[\s\S]*assert len\(set\(p\.ds_id",
        affects={"deepspeed": ">=0.12.0"},
        evidence=(
            "https://github.com/deepspeedai/DeepSpeed/issues/988",
            "https://github.com/deepspeedai/DeepSpeed/issues/4505",
        ),
    ),
)
