"""What the config offers to measure and to log: the profiler and monitors."""

from __future__ import annotations

from ..fact import Fact

FACTS = (
    Fact(
        id="of_get_model_profile",
        names=(
            "get_model_profile",
            "deepspeed/profiling/flops_profiler/profiler.py:get_model_profile",
        ),
        title="get_model_profile: inputs, and what is not counted",
        what="It runs the model with one float tensor of input_shape, or with args and kwargs of your own (token ids "
        "need those, on the model's device). It counts what goes through torch's functions in this process: custom "
        "kernels count 0, and so do parameters that ZeRO-3 has partitioned.",
        remedy="get_model_profile(model, kwargs=dict(input_ids=…)) with the unwrapped model, before "
        "deepspeed.initialize.",
        evidence=("deepspeed.profiling.flops_profiler.profiler.get_model_profile",),
    ),
    Fact(
        id="monitors_without_loss",
        names=(
            "csv_monitor",
            "MonitorMaster",
            "TensorBoardMonitor",
            "WandbMonitor",
        ),
        beside=(
            "loss + incomplete",
            "loss + empty",
            "loss + unused",
            "loss + how",
            "loss + fails",
            "fails + importing",
            "fails + start",
        ),
        title="monitors: no loss since 0.18.3, and wandb 0.20",
        what="Since 0.18.3 the engine logs no train_loss, except in pipelines; lr and fp16's loss scale are still "
        "logged. wandb 0.20 or later fails at the first logged step with DeepSpeed before 0.17.2.",
        remedy="Log the loss in the script (or the Trainer's report_to), or dsfix's patches.",
        patches=(
            "monitor_train_loss",
            "wandb_log_sync",
        ),
        evidence=("deepspeed.monitor",),
    ),
)
