"""DeepSpeed's activation checkpointing: its options and functions."""

from __future__ import annotations

from ..fact import Fact

FACTS = (
    Fact(
        id="partition_activations",
        names=("partition_activations",),
        title="activation checkpointing: what partition_activations divides",
        what="The saved inputs of each checkpointed layer are divided among the ranks of the model-parallel group of "
        "the mpu. Without an mpu, or with a group of one rank, nothing is divided and no memory is saved. The inputs "
        "are emptied in the forward pass, so that they cannot be used elsewhere until the backward pass.",
        remedy="cpu_checkpointing moves the saved inputs to the host without an mpu. Copies of inputs that are used "
        "elsewhere.",
        evidence=("deepspeed.runtime.activation_checkpointing.checkpointing.partition_activations",),
    ),
)
