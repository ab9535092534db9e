"""Which problems a text can mean that has some of the vocabulary's names together, and which it then does not mean."""

from __future__ import annotations

# id of a signature -> names that are all in a sentence or in it and the title
_KINDS = {
    # hangs
    "saving_hangs": ("hang + saving", "hang + checkpoint"),
    "experts_diverge": ("hang + experts", "experts + zero-3 + differs"),
    "inputs_of_other_kinds_hang": ("hang + images",),
    "evaluation_diverges": ("hang + evaluation",),
    "fp16_zero1_overflow_deadlock": ("hang + fp16",),
    "nodes_do_not_meet": ("hang + nodes + start", "nodes + connection"),
    "ranks_wait_in_init": ("hang + start",),
    "collective_timeout": ("nccl + connection", "connection + zero-3", "hang + connection"),
    "job_hangs": ("hang",),
    # speed
    "training_config_for_inference": ("zero inference + kernels",),
    "offload_leaves_gpu_empty": ("offload + memory + incomplete", "offload + memory + unused"),
    "zero_inference_slow": ("slow + zero inference",),
    "checkpoint_is_large": ("saving + slow", "checkpoint + large", "saving + large"),
    "zero3_and_generation": (
        "zero-3 + generation + slow",
        "zero-3 + generation + hang",
        "zero-3 + generation + garbage",
        "zero-3 + inference + hang",
        "zero-3 + inference + slow",
        "zero-3 + garbage",
        "rlhf + generation + slow",
    ),
    "inference_gives_no_speedup": (
        "slow + inference",
        "slow + kernels",
        "inference + lower + results",
        "inference + tensor parallel + memory",
        "kernels + memory",
    ),
    # memory
    "loaded_by_each_rank": ("host + oom", "host + number of ranks", "host + loading", "tensor parallel + fits"),
    "memory_grows": ("grows + memory", "grows + host", "grows + oom"),
    "memory_of_first_gpu": ("unbalanced + memory", "first gpu + memory", "first gpu + oom"),
    "memory_stays_reserved": ("not released + memory",),
    "memory_not_reduced": (
        "memory + zero-3",
        "memory + zero-2",
        "memory + zero-1",
        "memory + offload",
        "memory + differs",
        "memory + whole model",
    ),
    "out_of_memory": ("oom",),
    # checkpoints
    "another_world_size": ("resuming + number of ranks", "loading + checkpoint + number of ranks"),
    "universal_checkpoint_problem": ("universal + checkpoint",),
    "resumed_differently": ("resuming + loss", "resuming + learning rate", "resuming + results"),
    "lora_weights_empty": ("adapter + empty",),
    "placeholders_in_checkpoint": ("loading + empty",),
    "shard_saved_of_tensor_parallel": ("saving + tensor parallel",),
    "pipeline_saved_by_layers": ("saving + pipeline",),
    "saved_without_gathering": (
        "saving + empty",
        "zero-3 + saving + incomplete",
        "adapter + saving + incomplete",
        "zero-3 + empty + parameters",
        "zero-3 + empty + checkpoint",
        "zero-3 + saving + loading",
        "adapter + saving + whole model",
    ),
    "saved_model_is_not_the_trained": (
        "garbage + saving",
        "garbage + loading",
        "garbage + adapter",
        "garbage + zero to fp32",
        "differs + zero to fp32",
        "results + differs + saving",
        "results + differs + loading",
    ),
    # numbers
    "gradients_nan": ("nan", "zero loss"),
    "loss_does_not_fall": ("loss + not falling",),
    "accumulation_miscounted": ("accumulation + differs", "accumulation + loss"),
    "steps_divided_by_ranks": ("steps + number of ranks", "steps + differs"),
    "schedule_not_followed": ("learning rate + differs",),
    "loss_differs": ("results + differs", "gradients + differs"),
    "gradient_is_none": ("gradients + none", "gradients + empty"),
    "inference_gives_nonsense": (
        "garbage + kernels",
        "garbage + inference",
        "garbage + tensor parallel",
        "kernels + padding",
    ),
    # set-ups
    "quantized_model": ("quantized + zero-3", "quantized + offload"),
    "several_models_trained": ("several models",),
    "reference_model_partitioned": ("reference model + zero-3 + fails",),
    "average_of_weights": ("ema",),
    "printed_weights_are_placeholders": ("embedding + zero-3 + empty",),
    "unsloth_with_deepspeed": ("unsloth + zero-3",),
    "only_one_gpu_used": ("one gpu",),
    "hybrid_engine": ("hybrid engine",),
    "pipeline_with_zero2": ("pipeline + zero-2", "pipeline + zero-3"),
    "visible_devices_ignored": ("visible devices + wrong",),
    # starting
    "rank_variables_missing": ("alone + nodes", "alone + start", "alone + launcher"),
    "installing_on_windows": ("windows + installing", "windows + building"),
}

WAYS = {id: tuple(frozenset(way.split(" + ")) for way in ways) for id, ways in _KINDS.items()}
"""id of a signature -> sets of names of the vocabulary."""

# id of a signature -> names with which a text means something else
_OTHERWISE = {
    "loss_differs": "inference kernels generation experts resuming saving loading slow memory oom hang",
    "memory_not_reduced": "grows unbalanced host",
    "saved_without_gathering": "hang pipeline",
    "several_models_trained": "inference generation",
    "reference_model_partitioned": "unsloth quantized memory oom hang slow saving",
    "nodes_do_not_meet": "saving checkpoint evaluation",
}

OTHERWISE = {id: frozenset(names.split()) for id, names in _OTHERWISE.items()}
"""id of a signature -> names of the vocabulary that rule it out where they stand in the same sentence or the title."""
