"""DeepSpeed's activation checkpointing: its options and functions."""

from __future__ import annotations

from ..fact import Fact

FACTS = (
    Fact(
        id="partition_activations",
        names=("partition_activations",),
        title="activation checkpointing: what partition_activations divides",
        what="The saved inputs of each layer that calls deepspeed.checkpointing.checkpoint are divided among the "
        "model-parallel ranks of the mpu; without an mpu, or with one rank, nothing is divided and no memory is saved. "
        "It holds only after deepspeed.checkpointing.configure, and not for torch's checkpointing (transformers). The "
        "inputs are emptied in the forward pass and cannot be used elsewhere until the backward pass.",
        remedy="cpu_checkpointing moves the saved inputs to the host without an mpu, also after configure. Copies of "
        "inputs that are used elsewhere.",
        evidence=("deepspeed.runtime.activation_checkpointing.checkpointing: partition_activations, configure",),
    ),
)
