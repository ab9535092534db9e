"""The flops profiler and the autotuner."""

from __future__ import annotations

from ..signature import Role, Signature

SIGNATURES = (
    Signature(
        id="flops_profiler_counts",
        title="the flops profiler shows other numbers than expected, or none",
        what="It counts the torch operators that it patches, on one rank, in the forward pass of one step "
        "(profile_step), and triples them for forward and backward. Fused and custom kernels, flash attention and "
        "functions that were imported by name before are not counted, recomputed activations are; a multiply-add is "
        "one MAC and two flops. The summary is printed by engine.step() of that step, on rank 0, and not by a "
        "pipeline's engine of old releases. Formulas (Megatron, 6 * parameters * tokens) count otherwise.",
        remedy="Measure one step after the first ones; outside of an engine start_profile before and end_profile after "
        "each measured step. Operators that are not counted: use the model's formula. A current DeepSpeed.",
        pattern=r"(?:Flops Profiler|flops profiler|FLOPS profiler|FLOPs profiler|Flops profiler|FlopsProfiler"
        r"|flops_profiler"
        r"|Flops_profiler|FLOPS Profiler|get_model_profile)[^\n]{0,200}(?:wrong|incorrect|not correct|lower than"
        r"|higher than|greater and greater|stale|n't work|not work|can't get any|not printed|no output|question)"
        r"|(?:FLOPs|FLOPS|flops)[^\n]{0,120}(?:greater and greater|much lower than that| is always 0)"
        r"|scale factor on flops profiler",
        role=Role.FAMILY,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/2292",),
    ),
    Signature(
        id="autotuning_found_nothing",
        title="the autotuner found no configuration: none of its experiments has run",
        what="Each experiment is a run of the script with another config. If all end with an error, or no micro-batch "
        "fits the memory, there is nothing to choose from. Most likely the script does not take the config that the "
        'autotuner writes, other arguments contradict it (batch size, accumulation: "auto" and arg_mappings), or the '
        "script ends before end_profile_step.",
        remedy="stderr.log in autotuning_results/<experiment>, and the command in its cmd.txt without --autotuning. "
        "For the Trainer's arguments arg_mappings: train_micro_batch_size_per_gpu to --per_device_train_batch_size, "
        "gradient_accumulation_steps to --gradient_accumulation_steps.",
        pattern=r"No optimal DeepSpeed configuration found by autotuning|No optimal setup is found\. Please check"
        r"|did not run successfully with error = |the tuning micro batch size list is empty",
        role=Role.GENERAL,
        evidence=("https://github.com/deepspeedai/DeepSpeed/blob/v0.17.6/deepspeed/autotuning/autotuner.py",),
    ),
    Signature(
        id="autotuning_fails",
        title="the autotuner fails, or does not go on",
        what="It starts the script again and again with other configs, through pdsh, which must be installed also for "
        "one host, and reads what each run leaves. What a run complains of is in its own log; a run that hangs (one "
        "rank has failed, or is out of memory) holds up the rest. results_dir and exps_dir must be seen by all hosts.",
        remedy="stderr.log and stdout.log in autotuning_results/<experiment>; apt-get install pdsh; the script alone, "
        "with the ds_config.json of that experiment.",
        pattern=r"(?:utotuning|autotuner|Autotuner|autotune |Autotune |auto-tuning)[^\n]{0,60}(?:hangs?\b|stuck"
        r"|\berrors?\b"
        r"|fails?\b|failed|cannot|can't|not work|n't work|报错|失败)"
        r"|(?:[Ee]rror|[Ff]ails?|[Pp]roblem)[^\n]{0,30}(?:autotuning|autotuner|Autotuning)\b",
        role=Role.FAMILY,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/4100",),
    ),
    Signature(
        id="autotuning_requirements",
        title="the autotuner lacks a package or a file",
        what="It needs tabulate (deepspeed[autotuning]; deepspeed[autotuning_ml] for the model-based tuner), and a "
        "JSON file after --deepspeed or --deepspeed_config in the script's arguments, not a dictionary in the script.",
        remedy="pip install 'deepspeed[autotuning]'; --deepspeed ds_config.json among the script's arguments.",
        pattern=r"Missing required package `tabulate`|deepspeed w\. 'autotuning_ml' extra"
        r"|there is no ds_config file specified after|requires a json file to specify the configuration"
        r"|in the autotuning configuration must not be less than",
    ),
)
