"""What the config offers to measure and to log: profilers, timers, monitors, the autotuner."""

from __future__ import annotations

from ..fact import Fact

FACTS = (
    Fact(
        id="of_flops_profiler",
        names=(
            "flops_profiler",
            "profile_step",
            "module_depth",
            "top_modules",
            "print_model_profile",
            "recompute_fwd_factor",
        ),
        title="flops_profiler: when it prints, and what it counts",
        what="Rank 0 prints once, in engine.step() of step profile_step: nothing in pipelines (train_batch has no "
        "such step), in evaluation, or if the job ends before. It counts one rank's forward pass through torch's "
        "functions, not custom kernels (flash attention, Triton); the backward pass is estimated. While it is enabled, "
        "wall_clock_breakdown is on in all steps, and through 0.19.5 attention and @ stay wrapped afterwards.",
        remedy="profile_step some steps after the start, output_file for the table, and off for the real job; "
        "get_model_profile for a model alone.",
        patches=("flops_profiler_leaves_wrappers",),
        evidence=("deepspeed.runtime.engine.DeepSpeedEngine.step",),
    ),
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
        id="of_wall_clock_breakdown",
        names=(
            "wall_clock_breakdown",
            "memory_breakdown",
            "SynchronizedWallClockTimer",
        ),
        title="wall_clock_breakdown, memory_breakdown: times and memory of the passes",
        what="wall_clock_breakdown logs the time of forward, backward and step of each micro-batch on rank 0, by "
        "events of the GPU, and slows training a little. With overlap_comm, communication that overlaps is inside the "
        "backward time. memory_breakdown prints the memory before and after each pass.",
        remedy="On to find out where the time goes, then off; flops_profiler switches it on, too.",
        patches=("pipeline_steps_per_print_timers",),
        evidence=("deepspeed.runtime.engine.EngineTimers",),
    ),
    Fact(
        id="of_comms_logger",
        names=(
            "comms_logger",
            "prof_all",
            "prof_ops",
            "log_summary",
        ),
        title="comms_logger: it counts, but prints only when it is asked",
        what="It times the operations that go through deepspeed.comm (not torch.distributed directly), and "
        "synchronizes after each, which slows the job; prof_ops matches only calls that pass a log_name, so use "
        "prof_all. The table is printed by deepspeed.comm.log_summary(), on all ranks, in the script; verbose true "
        "prints each operation.",
        remedy="deepspeed.comm.log_summary() at the end of the script; NCCL's or torch's profiler for what overlaps.",
        evidence=("deepspeed.comm.comm.timed_op",),
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
    Fact(
        id="of_autotuning",
        names=(
            "autotuning_results",
            "autotuning_exps",
            "arg_mappings",
            "model_info_profile_run",
            "tuner_early_stopping",
            "tuner_num_trials",
            "deepspeed/autotuning/autotuner.py:tune",
            "deepspeed/autotuning/autotuner.py:run_autotuning",
            "deepspeed/autotuning/autotuner.py:model_info_profile_run",
        ),
        title="the autotuner: most likely its first experiment failed",
        what="deepspeed --autotuning run starts the script once per experiment, first to profile the model; it needs "
        "a config in a .json file (--deepspeed or --deepspeed_config), a script that takes its batch size from the "
        "config (or arg_mappings), and steps beyond end_profile_step. A script that fails, or does not call the "
        "engine, leaves no model_info or metric, and the tuning ends without a result.",
        remedy='autotuning_results/profile_model_info/stderr.log shows the script\'s own error; "auto" and '
        'arg_mappings with the Trainer; "fast": false to tune more than the micro-batch.',
        patches=("autotuning_nested_values",),
        evidence=("deepspeed.autotuning.autotuner.Autotuner.model_info_profile_run",),
    ),
    Fact(
        id="of_see_memory_usage",
        names=(
            "see_memory_usage",
            "log_dist",
            "dump_state",
            "memory_reserved",
            "max_memory_allocated",
            "max_memory_reserved",
        ),
        title="see_memory_usage: what MA, Max_MA, CA and Max_CA mean",
        what="MA is memory_allocated, CA memory_reserved, what torch keeps; both are of this process's GPU, and "
        "nvidia-smi shows CA and the CUDA context. Only rank 0 prints, and only with force=True; each call resets the "
        "peaks (Max_). CPU virtual memory is that of the whole host, without caches of files.",
        remedy="deepspeed.runtime.utils.see_memory_usage('name', force=True) in the script; much CA with little MA "
        "is fragmentation or cache: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
        evidence=("deepspeed.runtime.utils.see_memory_usage",),
    ),
)
