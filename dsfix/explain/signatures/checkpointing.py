"""Gradient checkpointing: recomputation in the backward pass."""

from __future__ import annotations

from ..signature import Role, Signature, pull

SIGNATURES = (
    Signature(
        id="recomputed_empty",
        title="CheckpointError: a tensor of the forward pass has the shape [0] when it is recomputed",
        what="ZeRO-3 has released a frozen parameter (LoRA's base model, a frozen tower) when non-reentrant gradient "
        "checkpointing, with torch 2.5 or later, compares saved with recomputed tensors.",
        remedy="DeepSpeed 0.19.3 or later; else ZeRO-2, or no gradient checkpointing.",
        patches=("zero3_checkpoint_recompute",),
        pattern=r"(?i:zero-?_? ?3)[^\n]{0,80}checkpoint[^\n]{0,60}shape mismatch[^\n]{0,60}\[0\]",
    ),
    Signature(
        id="reentrant_shared_module",
        title="the gradient of a parameter is computed twice in one backward pass",
        what="Most likely a module is used twice with reentrant gradient checkpointing, whose checkpoints each run a "
        "backward pass of their own: several forward passes in one loss (pairs, contrastive and preference losses), "
        'tied or shared modules. ZeRO-2 reports "has already been reduced"; ZeRO-3 fails in a bare assertion or, with '
        "some models, silently computes wrong gradients. Otherwise two backward passes for one step.",
        remedy='gradient_checkpointing_kwargs={"use_reentrant": False} (transformers), use_reentrant=False in '
        "torch.utils.checkpoint, or no gradient checkpointing. Concatenate the inputs of several forward passes into "
        "one batch; add losses before one engine.backward.",
        pattern=r"has already been reduced\.\s+Gradient computed twice|[Gg]radient computed twice for this partition"
        r"|in __reduce_and_partition_ipg_grads[\s\S]*assert len\(set\(p\.ds_id",
        affects={"deepspeed": ">=0.12.0"},
        evidence=(
            "https://github.com/deepspeedai/DeepSpeed/issues/988",
            "https://github.com/deepspeedai/DeepSpeed/issues/4505",
        ),
    ),
    Signature(
        id="tensor_backward_reentrant",
        title="loss.backward() and reentrant gradient checkpointing: gradients are reduced before the pass has ended",
        what="Without engine.backward, DeepSpeed 0.18.3 and 0.18.4 count the parameters of the running backward pass; "
        "each reentrant checkpoint runs a pass of its own, after which they reduce what there is. ZeRO-2 and ZeRO-3 "
        "then fail in one of the next passes; ZeRO-1 silently trains with wrong gradients.",
        remedy="engine.backward(loss); use_reentrant=False in torch.utils.checkpoint; or DeepSpeed 0.18.5 or later.",
        pattern=r"in _backward_post_hook\n[\s\S]{0,3000}in (?:__reduce_and_partition_ipg_grads\n[\s\S]{0,200}"
        r"'NoneType' object has no attribute 'numel'|copy_grads_in_partition\n[\s\S]{0,200}"
        r"'NoneType' object has no attribute 'view')",
        affects={"deepspeed": ">=0.18.3,<0.18.5"},
        evidence=pull(7780),
    ),
    Signature(
        id="partitioned_activations_save_nothing",
        title="partition_activations does not save memory",
        what="Activations are partitioned over the ranks of one model-parallel group. Without one (mpu None, or a "
        "model-parallel size of 1) each rank keeps all of them; and it concerns deepspeed.checkpointing only, not "
        "torch's or transformers' gradient checkpointing.",
        remedy="An mpu with a model-parallel size above 1; otherwise cpu_checkpointing, a smaller micro-batch, or "
        "sequence parallelism.",
        pattern=r"(?:artition(?:ed|ing)? activation|artition_activations)[^\n]{0,80}(?:not reduc|n't reduc|not sav"
        r"|no effect|same memory|not decreas)",
        role=Role.POSSIBLE,
        evidence=("deepspeed.runtime.activation_checkpointing.checkpointing.partition_activations",),
    ),
)
