"""ZeRO-3 with states on NVMe, and states that are moved by the script."""

from __future__ import annotations

from ..signature import Signature, pull

SIGNATURES = (
    Signature(
        id="nvme_group_without_id",
        title="optimizer and parameters on NVMe: 'Tensor' object has no attribute 'ds_id'",
        what="0.13.0 to 0.14.4 register groups on NVMe before these have an id.",
        remedy="DeepSpeed 0.14.5 or later; or parameters on the CPU (offload_param.device).",
        pattern=r"swap_tensor/optimizer_utils\.py[\s\S]*'(?:Tensor|Parameter)' object has no attribute 'ds_id'",
        affects={"deepspeed": ">=0.13.0,<0.14.5"},
        evidence=pull(5824),
    ),
    Signature(
        id="offload_states_with_offload_param",
        title="engine.offload_states(): Moving states across devices is not supported for offloaded parameters",
        what='The config has a section offload_param. 0.15.2 to 0.16.5 refuse it even with the device "none", as '
        "accelerate writes it.",
        remedy='Leave offload_param out of the config. With "device": "none" also DeepSpeed 0.16.6 or later.',
        pattern=r"Moving states across devices is not supported for offloaded parameters",
        affects={"deepspeed": ">=0.15.2"},
        evidence=pull(7211),
    ),
    Signature(
        id="super_offload_arguments",
        title="super_offload: multiple values for argument 'timers' in deepspeed.initialize",
        what="0.18.0 to 0.18.3 pass an argument that SuperOffload's optimizer does not know.",
        remedy='DeepSpeed 0.18.4 or later; or "super_offload": false.',
        pattern=r"SuperOffloadOptimizer_Stage3\.__init__\(\) got multiple values for argument 'timers'",
        affects={"deepspeed": ">=0.18.0,<0.18.4"},
        evidence=pull(7715),
    ),
    Signature(
        id="swapped_larger_than_buffer",
        title="NVMe offload of the optimizer: the buffers of DeepSpeed 0.3 are too small",
        what="What is swapped is rounded up to the alignment of the I/O; the buffers of DeepSpeed before 0.4.0 have "
        "the size of the largest partition of a parameter, not rounded up.",
        remedy="DeepSpeed 0.4.0 or later. With the old one a largest parameter whose part per rank is a multiple of "
        "the alignment (1024 bytes times aio's thread_count).",
        pattern=r"num_elems \d+> buffer \d+",
        affects={"deepspeed": "<0.4.0"},
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/1033", *pull(1036)),
    ),
)
