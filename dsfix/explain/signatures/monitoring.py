"""Monitors, the flops profiler and the log of communication."""

from __future__ import annotations

from ..signature import Role, Signature, pull

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
    Signature(
        id="wandb_without_key",
        title="wandb has no key, or cannot reach its server",
        what="The Trainer and DeepSpeed's monitor report to wandb where it is installed or configured; without a login "
        "in a job without a terminal, or without the internet, it fails or waits.",
        remedy="wandb login (or WANDB_API_KEY) on the hosts; WANDB_MODE=offline; or not at all: --report_to none, "
        '"wandb": {"enabled": false}.',
        pattern=r"api_key not configured|wandb\.errors\.\w*(?:UsageError|CommError|AuthenticationError)"
        r"|wandb: ERROR (?:Error while calling W&B API|Abnormal program exit|Network error"
        r"|Run initialization has timed out)"
        r"|wandb: Network error \(",
        role=Role.GENERAL,
    ),
    Signature(
        id="monitor_package_missing",
        title="a monitor of the config needs a package",
        what="tensorboard, wandb or comet is enabled in the DeepSpeed config, and its package is not installed, or "
        "comet_ml is older than 3.41.0.",
        remedy='pip install tensorboard, wandb or "comet_ml>=3.41.0"; or "enabled": false in that section.',
        pattern=r"If you want to use (?:tensorboard|wandb|comet) logging,? please"
        r"|`comet_ml` must have at least version",
    ),
)
