"""What the config offers to measure and to log: profilers, timers, monitors, the autotuner."""

from __future__ import annotations

from ..fact import Fact

FACTS = (
    Fact(
        id="of_get_model_profile",
        names=(
            "get_model_profile",
            "FlopsProfiler",
            "get_total_flops",
            "deepspeed/profiling/flops_profiler/profiler.py:get_model_profile",
        ),
        title="get_model_profile: inputs, and what is not counted",
        what="It runs the model with a tensor of ones of input_shape, or with args and kwargs of your own (token ids "
        "need those, on the model's device). Only torch's functions are counted, per process: custom kernels count 0, "
        "and so do parameters that ZeRO-3 has partitioned. With FlopsProfiler itself counts add up from pass to pass "
        "unless end_profile is called, and through 0.19.5 even then for attention and @.",
        remedy="get_model_profile(model, kwargs=dict(input_ids=…)) with the unwrapped model, before "
        "deepspeed.initialize.",
        evidence=("deepspeed.profiling.flops_profiler.profiler.get_model_profile",),
    ),
    Fact(
        id="of_monitors",
        names=(
            "csv_monitor",
            "MonitorMaster",
            "tensorboard.enabled",
            "wandb.enabled",
            "TensorBoardMonitor",
            "WandbMonitor",
        ),
        title="tensorboard, wandb, csv_monitor, comet: what the engine logs",
        what="Rank 0 logs lr, loss_scale in fp16 and timings, over samples and not steps, into output_path/job_name. "
        "Since 0.18.3 the engine logs no train_loss, except in pipelines. wandb 0.20 fails with DeepSpeed before "
        "0.17.2, and a script that logs to wandb itself gets a second run or decreasing steps.",
        remedy="Log in the script (or the Trainer's report_to), without these sections; dsfix's patch for the loss.",
        patches=(
            "monitor_train_loss",
            "wandb_log_sync",
        ),
        evidence=("deepspeed.monitor",),
    ),
)
