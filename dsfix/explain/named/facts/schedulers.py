"""DeepSpeed's learning-rate schedulers, and its loss scale."""

from __future__ import annotations

from ..fact import Fact

_SCHEDULES = "deepspeed/runtime/lr_schedules.py"

FACTS = (
    Fact(
        id="warmup_schedulers",
        names=(
            *("WarmupLR", "WarmupDecayLR", "warmup_max_lr", "warmup_min_lr", "warmup_num_steps"),
            f"{_SCHEDULES}:__init__",
        ),
        title="WarmupLR and WarmupDecayLR",
        what="They set the learning rate from warmup_min_lr to warmup_max_lr, which replaces the optimizer's lr: left "
        "out, it is 0.001, for WarmupLR since 0.17.2 the optimizer's. The warm-up is logarithmic unless warmup_type "
        "is linear; before 0.15.3 the first update is made with the optimizer's full lr. WarmupLR does not decay; "
        "WarmupDecayLR needs total_num_steps in updates and ends at warmup_min_lr.",
        remedy="The same number for lr and warmup_max_lr, warmup_type: linear, and steps counted in updates of the "
        'optimizer; only transformers and accelerate fill in "auto".',
        patches=("warmup_first_step", "warmup_group_rates"),
        evidence=(f"{_SCHEDULES}: WarmupLR, WarmupDecayLR",),
    ),
    Fact(
        id="cosine_scheduler",
        names=("WarmupCosineLR", "warmup_min_ratio", "cos_min_ratio"),
        title="WarmupCosineLR",
        what="It exists since 0.12.3 and multiplies each group's lr: its settings are ratios (warmup_min_ratio, "
        "cos_min_ratio), not warmup_max_lr. total_num_steps is in updates of the optimizer and is required; before "
        "0.19.3 the cosine rises again past it.",
        remedy="total_num_steps of the whole training, lr in the optimizer.",
        patches=("warmup_cosine_past_end", "warmup_cosine_first_step"),
        evidence=(f"{_SCHEDULES}: WarmupCosineLR",),
    ),
    Fact(
        id="one_cycle_scheduler",
        names=("OneCycle", "cycle_min_lr", "cycle_max_lr", "cycle_first_step_size", "LRRangeTest"),
        title="OneCycle and LRRangeTest",
        what="OneCycle sets the lr of all groups from cycle_min_lr to cycle_max_lr and back, in updates of the "
        "optimizer, and Adam's first beta against it, with 0.99 as the second, unless cycle_momentum is false. "
        "LRRangeTest only raises the lr, to find one. Both ignore the optimizer's lr.",
        remedy="cycle_first_step_size + cycle_second_step_size = the updates of the training; decay_lr_rate needs "
        "decay_step_size.",
        patches=("one_cycle_stairs",),
        evidence=(f"{_SCHEDULES}: OneCycle, LRRangeTest",),
    ),
    Fact(
        id="last_lr_of_scheduler",
        names=("get_last_lr", "_get_learning_rate", "get_lr"),
        title="reading the learning rate with DeepSpeed",
        what="get_last_lr of DeepSpeed's schedulers raises before its first value, in older releases until the first "
        "update; with fp16 the first updates are skipped by overflows, and the scheduler with them. engine.get_lr() "
        "returns one per group of the optimizer.",
        remedy="engine.get_lr()[0], or optimizer.param_groups[0]['lr'].",
        beside=("learning rate + fails", "learning rate + none", "fp16", "learning rate + wrong"),
        evidence=(f"{_SCHEDULES}: get_last_lr",),
    ),
    Fact(
        id="scheduler_of_script",
        names=("LambdaLR", "CosineAnnealingLR", "lr_scheduler_callable"),
        title="a scheduler of the script with DeepSpeed",
        what="deepspeed.initialize takes a scheduler object only together with the optimizer object that it was made "
        "for, or a callable that gets the optimizer. Where the config has one, too, that one is taken before 0.14.5, "
        "the script's since then. It is stepped by engine.step(), once per update; warm-ups that were counted in "
        "micro-batches or processes are off by that factor.",
        remedy="lr_scheduler=lambda optimizer: LambdaLR(optimizer, f), with the optimizer in the config.",
        evidence=("deepspeed/runtime/engine.py: _configure_lr_scheduler, _do_sanity_check",),
    ),
    Fact(
        id="loss_scale_of_fp16",
        names=(
            *("initial_scale_power", "loss_scale_window", "min_loss_scale", "loss_scale", "cur_scale"),
            *("DynamicLossScaler", "LossScaler", "deepspeed/runtime/fp16/loss_scaler.py:update_scale"),
        ),
        title="fp16's loss scale",
        what="loss_scale 0 is dynamic: it starts at 2**initial_scale_power (16), halves at an overflow, with ZeRO "
        "after hysteresis of them, and doubles after loss_scale_window steps without one. At min_loss_scale (1) with "
        "another overflow ZeRO raises. Many overflows mean that activations or weights leave fp16's range: models "
        "that were trained in bf16 (T5, Gemma, Qwen2, …) do so by themselves.",
        remedy="bf16 where the GPU has it; otherwise a smaller learning rate. The first skipped steps are normal: a "
        "lower initial_scale_power avoids them.",
        beside=("fp16", "nan", "not falling", "fails", "loss"),
        patches=("fp16_scale_growth_step",),
        evidence=("deepspeed/runtime/fp16/loss_scaler.py: DynamicLossScaler",),
    ),
)
