"""Measuring and tuning: the flops profiler, timers, monitors, the communication log, the autotuner."""

from __future__ import annotations

from ..fact import Fact

_PROFILER = "deepspeed.profiling.flops_profiler.profiler"
_FRAMES = "deepspeed/profiling/flops_profiler/profiler.py"

FACTS = (
    Fact(
        id="flops_of_profiler",
        names=(
            "flops_profiler",
            "FlopsProfiler",
            "get_model_profile",
            "profile_step",
            "get_total_flops",
            "print_model_profile",
            "get_total_macs",
            "ds_pipeline_enabled",
            "deepspeed/profiling/flops_profiler/profiler.py:newFunc",
            "deepspeed/profiling/flops_profiler/profiler.py:start_time_hook",
            "deepspeed/profiling/flops_profiler/profiler.py:print_model_profile",
            "deepspeed/profiling/flops_profiler/profiler.py:wrapper",
        ),
        title="the flops profiler: what it counts",
        what="It counts the forward pass of one step on one rank, by replacing torch's functions: what is called "
        "under other names (flash-attn, Triton, compiled modules, custom C++) counts as 0, recomputation only by "
        "recompute_fwd_factor. MACs are half of the flops; parameters that ZeRO-3 has partitioned count as 0. The "
        "engine prints at its step(), not with a pipeline; numbers add up until a reset.",
        remedy="profile_step above the warm-up; start_profile, one forward, print, end_profile for each measurement; "
        "backward is about twice the forward.",
        beside=("fails", "wrong", "differs", "how", "zero-3", "none", "grows", "empty", "profiler", "generation"),
        patches=("flops_profiler_leaves_wrappers",),
        evidence=(f"{_PROFILER}:FlopsProfiler",),
    ),
    Fact(
        id="timers_of_engine",
        names=(
            "wall_clock_breakdown",
            "SynchronizedWallClockTimer",
            "ThroughputTimer",
            "SamplesPerSec",
            "CurrSamplesPerSec",
        ),
        title="wall_clock_breakdown, SamplesPerSec: what they measure",
        what="With wall_clock_breakdown each step() waits for the GPU to read the timers, which slows the job; its "
        "times are of this rank, and waiting for other ranks counts for the part in which it waits. SamplesPerSec "
        "takes train_batch_size as given: with a loader of one's own of other sizes it is wrong.",
        remedy="Use it for some steps only; compare the ranks. A profiler (torch.profiler, nsys) tells what waits.",
        beside=("slow", "differs", "how", "wrong", "results", "large"),
        evidence=("deepspeed.utils.timer",),
    ),
    Fact(
        id="monitors_of_config",
        names=(
            *("csv_monitor", "MonitorMaster", "WandbMonitor", "TensorBoardMonitor", "write_events", "monitor_config"),
            *("deepspeed/monitor/wandb.py:__init__", "deepspeed/monitor/tensorboard.py:__init__", "CometMonitor"),
        ),
        title="monitors of the config: what they write",
        what="tensorboard, wandb, comet and csv_monitor are written by rank 0, at steps of the optimizer, with the "
        "number of samples as the x axis: learning rate, loss scale, and the loss (since 0.18.3 of pipelines only). "
        "The package must be installed; frameworks (transformers' report_to) log on their own, so that two runs of "
        "wandb appear.",
        remedy="One of both; engine.monitor.write_events([(name, value, engine.global_samples)]) for values of one's "
        "own.",
        patches=("monitor_train_loss", "wandb_log_sync"),
        evidence=("deepspeed.monitor.monitor:MonitorMaster",),
    ),
    Fact(
        id="communication_log",
        names=("comms_logger", "log_summary", "prof_all", "CommsLogger", "deepspeed/utils/comms_logging.py:log_all"),
        title="comms_logger: which communication it sees",
        what="It logs what goes through deepspeed.comm, each call timed with a synchronization, so that the job gets "
        "slower; calls of torch.distributed by others are not in it. The summary is printed only when log_summary() "
        "is called, on all ranks, as it has a barrier.",
        remedy="For some steps only; algorithm and bus bandwidth are of this rank's times, which include waiting.",
        evidence=("deepspeed.utils.comms_logging",),
    ),
    Fact(
        id="autotuner_experiments",
        names=(
            *("autotuning_results", "autotuning_exps", "arg_mappings", "metric_path", "model_info_path"),
            *("start_profile_step", "end_profile_step", "num_tuning_micro_batch_sizes", "profile_model_info"),
            *("deepspeed/autotuning/autotuner.py:tune", "deepspeed/autotuning/autotuner.py:_get_user_config"),
            *("deepspeed/autotuning/autotuner.py:model_info_profile_run", "deepspeed.autotuning"),
        ),
        title="the autotuner: experiments are jobs of their own",
        what="deepspeed --autotuning starts the script again and again with other configs, and ends each by pdsh, "
        "also on one host; the script must take a config's path (--deepspeed or --deepspeed_config FILE.json) and let "
        "DeepSpeed decide batch size and accumulation. Each experiment ends by itself after end_profile_step steps; "
        "one that fails or writes no metrics is left out, and if all do so nothing is found.",
        remedy="stderr.log of the first experiment in autotuning_results tells the cause; pdsh installed, "
        "arg_mappings for the script's own arguments where the config has 'auto'.",
        patches=("autotuning_nested_values",),
        evidence=("deepspeed.autotuning.autotuner:Autotuner",),
    ),
    Fact(
        id="memory_messages",
        names=("see_memory_usage", "memory_breakdown", "MA_MB", "Max_MA", "Max_CA"),
        title="see_memory_usage: MA, CA and the host's memory",
        what="It prints with force=True only (the engine's own calls with memory_breakdown in the config), and on "
        "rank 0. MA is the memory of this process's tensors, CA what torch's allocator has reserved (nvidia-smi shows "
        "CA, the CUDA context and NCCL's buffers), both with their maxima since the last call. The virtual memory is "
        "the host's, of all processes together.",
        remedy="A large gap between CA and MA may be fragmentation: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
        beside=("memory", "oom", "grows", "how", "host"),
        evidence=("deepspeed.runtime.utils:see_memory_usage",),
    ),
)
