"""Monitors, the flops profiler and the log of communication."""

from __future__ import annotations

from ..signature import Signature, pull

SIGNATURES = (
    Signature(
        id="profiler_attention_by_name",
        title="flops profiler: _attn_flops_compute() missing arguments 'q', 'k' and 'v'",
        what="The model calls scaled_dot_product_attention(query=…, key=…, value=…), and the profiler, while it runs, "
        "takes these arguments by position only.",
        remedy='"flops_profiler": {"enabled": false}; or pass the three by position.',
        pattern=r"_attn_flops_compute\(\) missing \d required positional argument",
        affects={"deepspeed": ">=0.13.3"},
        evidence=("https://github.com/thu-ml/RoboticsDiffusionTransformer/pull/120",),
    ),
    Signature(
        id="profiler_data_parallel_size",
        title="flops profiler + sequence parallelism: unsupported format string passed to NoneType",
        what="With Ulysses the engine has no data parallel size, and the profiler prints it.",
        remedy='DeepSpeed 0.19.3 or later; or "flops_profiler": {"enabled": false}.',
        pattern=r"in print_model_profile[\s\S]*unsupported format string passed to NoneType\.__format__",
        affects={"deepspeed": "<0.19.3"},
        evidence=pull(8122),
    ),
    Signature(
        id="log_summary_on_cpu",
        title="deepspeed.comm.log_summary(show_straggler=True) with NCCL: no backend for the CPU's tensors",
        what="Through 0.17.1 latencies are compared between ranks in tensors on the CPU, which NCCL does not take.",
        remedy="DeepSpeed 0.17.2 or later, or show_straggler=False.",
        pattern=r"utils/comms_logging\.py[\s\S]*"
        r"(?:No backend type associated with device type cpu|Tensors must be CUDA)",
        affects={"deepspeed": "<0.17.2"},
        evidence=pull(7398),
    ),
)
