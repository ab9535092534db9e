"""The sections optimizer and scheduler of the config."""

from __future__ import annotations

from ..fact import Fact

FACTS = (
    Fact(
        id="of_torch_adam",
        names=(
            "torch_adam",
            "adam_w_mode",
            "adamw_mode",
        ),
        title="torch_adam, adam_w_mode: which Adam the config makes",
        what='The type "Adam" is AdamW as well unless adam_w_mode is false; "AdamW" always is. Without torch_adam '
        "they are FusedAdam, or DeepSpeedCPUAdam with offload_optimizer, whose operators are compiled on first use. "
        "torch_adam true takes torch's, which needs no compiler, also on the CPU, and is slower there.",
        remedy='"torch_adam": true among the optimizer\'s params where an operator cannot be compiled; '
        '"adam_w_mode": false for L2 regularization.',
        patches=("config_dict_reused",),
        evidence=("deepspeed.runtime.engine.DeepSpeedEngine._configure_basic_optimizer",),
    ),
    Fact(
        id="at_configure_basic_optimizer",
        names=("deepspeed/runtime/engine.py:_configure_basic_optimizer",),
        title="the optimizer that the config names is made here",
        what="Most likely its operator (FusedAdam, DeepSpeedCPUAdam) cannot be compiled or loaded: no CUDA toolkit "
        "of torch's version, no compiler or ninja, another torch than it was built for. Otherwise a key among the "
        'params that its constructor does not take (max_grad_norm), a value that is still "auto", or an empty list of '
        "parameters (no one requires a gradient).",
        remedy='The last line of the traceback tells; ds_report; "torch_adam": true needs no operator.',
        evidence=("deepspeed.runtime.engine.DeepSpeedEngine._configure_basic_optimizer",),
    ),
    Fact(
        id="at_configure_optimizer",
        names=(
            "deepspeed/runtime/engine.py:_do_optimizer_sanity_check",
            "deepspeed/runtime/engine.py:_check_for_duplicates",
        ),
        title="the optimizer does not fit the config",
        what="_do_optimizer_sanity_check refuses an optimizer that DeepSpeed does not list with ZeRO "
        "(zero_allow_untested_optimizer), amp with ZeRO, fp16 or bf16, and dtypes of accumulation that do not go with "
        "the precision. _check_for_duplicates refuses a parameter that is in two groups, most likely a tied weight or "
        "a filter that matches twice.",
        remedy='The message tells; "zero_allow_untested_optimizer": true, or "optimizer": {"type": "AdamW", …} in '
        "the config; each parameter in one group.",
        evidence=("deepspeed.runtime.engine.DeepSpeedEngine._do_optimizer_sanity_check",),
    ),
    Fact(
        id="of_onebit_adam",
        names=(
            "OneBitAdam",
            "OnebitAdam",
            "OneBitLamb",
            "ZeroOneAdam",
            "freeze_step",
            "comm_backend_name",
            "cuda_aware",
            "NcclBackend",
        ),
        title="1-bit Adam, 1-bit LAMB, 0/1 Adam: without ZeRO, in fp16",
        what="They are for stage 0 (ZeRO is refused) and were tested in fp16 only. Until freeze_step (100000 by "
        "default) they send everything, so a short job never compresses; afterwards the variance is fixed, and a too "
        "early freeze_step makes the loss worse. They need cupy of CUDA's version (pip install deepspeed[1bit]), with "
        "comm_backend_name mpi also mpi4py.",
        remedy="freeze_step after some 15 % of the steps; cupy-cuda12x; over a fast network plain AdamW with ZeRO.",
        evidence=("deepspeed.runtime.fp16.onebit.adam.OnebitAdam",),
    ),
    Fact(
        id="of_muon",
        names=(
            "use_muon",
            "muon_lr",
            "adam_lr",
            "MuonWithAuxAdam",
            "save_muon_momentum_buffer_in_memory",
        ),
        title="Muon in the config: which parameters it is for, and its bugs",
        what="Since 0.17.6: deepspeed.initialize marks matrices of hidden layers with use_muon by shape and name, "
        "others are trained by Adam. Without ZeRO it is plain SGD through 0.19.6, matrices that two ranks share get a "
        "wrong update in ZeRO-1 and 2 through 0.19.2, and groups' own lr and weight_decay are ignored in 0.19.2 to "
        "0.19.6. ZeRO-3 (0.18.9 and later) needs reduce_scatter false.",
        remedy="DeepSpeed 0.19.7 or later with ZeRO-1 or 2; muon_lr and adam_lr for separate rates.",
        affects={"deepspeed": ">=0.17.6"},
        patches=(
            "muon_without_zero",
            "muon_reduce_scatter",
            "muon_param_groups",
        ),
        evidence=("deepspeed.runtime.engine.DeepSpeedEngine._configure_basic_optimizer",),
    ),
    Fact(
        id="of_warmup_lr",
        names=(
            "WarmupLR",
            "warmup_max_lr",
            "warmup_min_lr",
            "warmup_type",
        ),
        title="WarmupLR: it rises by a logarithm, then stays, to a rate of its own",
        what="The rate goes from warmup_min_lr to warmup_max_lr in warmup_num_steps (1000) steps of the optimizer, "
        "by a logarithm unless warmup_type is linear, and stays there. warmup_max_lr is 0.001 if it is missing, "
        "whatever lr says (since 0.17.2 lr of the first group, for all groups through 0.19.3). Through 0.15.2 the "
        "first step is made at the optimizer's full lr.",
        remedy='"warmup_max_lr" as the optimizer\'s lr, "warmup_type": "linear"; WarmupDecayLR or '
        "WarmupCosineLR to fall again; one scheduler only, of the config or of the script.",
        patches=(
            "warmup_first_step",
            "warmup_group_rates",
        ),
        evidence=("deepspeed.runtime.lr_schedules.WarmupLR",),
    ),
    Fact(
        id="of_warmup_decay_lr",
        names=(
            "WarmupDecayLR",
            "WarmupCosineLR",
            "total_num_steps",
            "warmup_num_steps",
            "warmup_min_ratio",
            "cos_min_ratio",
        ),
        title="WarmupDecayLR, WarmupCosineLR: they need the number of optimizer steps",
        what="total_num_steps counts steps of the optimizer, not micro-batches: too small, and WarmupDecayLR stays "
        "at 0 for the rest; too large, and it hardly falls. WarmupDecayLR's warmup_max_lr is 0.001 if it is missing; "
        "WarmupCosineLR uses the optimizer's lr, takes warmup_min_ratio and cos_min_ratio instead of rates, and "
        'through 0.19.2 rises again after the end. The Trainer fills "auto", accelerate with DummyScheduler only.',
        remedy="total_num_steps = epochs * batches per rank / gradient_accumulation_steps; the same when resuming.",
        patches=(
            "warmup_cosine_first_step",
            "warmup_cosine_past_end",
            "warmup_first_step",
        ),
        evidence=("deepspeed.runtime.lr_schedules.WarmupDecayLR",),
    ),
    Fact(
        id="of_one_cycle",
        names=(
            "OneCycle",
            "LRRangeTest",
            "cycle_min_lr",
            "cycle_max_lr",
            "cycle_first_step_size",
            "lr_range_test_min_lr",
        ),
        title="OneCycle and LRRangeTest of DeepSpeed",
        what="OneCycle also moves betas (cycle_momentum true), for which the optimizer must have them; its stair "
        "counts are ignored through 0.19.3. It is not torch's OneCycleLR: the steps are cycle_first_step_size and "
        "cycle_second_step_size, then decay_lr_rate. LRRangeTest only rises, to find a rate.",
        remedy='"cycle_momentum": false for optimizers without betas; a scheduler of torch by its name in "type" '
        '(without "auto").',
        patches=("one_cycle_stairs",),
        evidence=("deepspeed.runtime.lr_schedules.OneCycle",),
    ),
    Fact(
        id="scheduler_of_config_counts",
        names=(
            "lr_scheduler_type",
            "lr_scheduler",
            "DummyScheduler",
            "DummyOptim",
        ),
        beside=(
            "learning rate + unused",
            "learning rate + fails",
            "learning rate + wrong",
            "learning rate + differs",
            "learning rate + how",
        ),
        title="a scheduler in the config beside one of the script",
        what="With a section scheduler in the DeepSpeed config the Trainer uses that one, not lr_scheduler_type; the "
        "engine prefers the config's through 0.14.4, and since then one that deepspeed.initialize is given. accelerate "
        "wants DummyOptim where the config has an optimizer, and DummyScheduler where it has a scheduler. torch's "
        "schedulers refuse an optimizer that DeepSpeed has wrapped.",
        remedy="Remove the section scheduler to use the script's, and optimizer likewise; or "
        "DummyScheduler(optimizer, total_num_steps=…, warmup_num_steps=…).",
        evidence=("deepspeed.runtime.engine.DeepSpeedEngine._configure_lr_scheduler",),
    ),
    Fact(
        id="at_scheduler",
        names=(
            "deepspeed/runtime/lr_schedules.py:get_last_lr",
            "deepspeed/runtime/lr_schedules.py:__init__",
            "deepspeed/runtime/lr_schedules.py:_format_param",
            "deepspeed/runtime/lr_schedules.py:get_torch_optimizer",
            "deepspeed/runtime/engine.py:_scheduler_from_config",
            "deepspeed/runtime/engine.py:_configure_lr_scheduler",
        ),
        title="the scheduler of the config: its params, or its rate before the first step",
        what="Most likely a param that is missing (WarmupDecayLR and WarmupCosineLR need total_num_steps), that the "
        'type does not take, or that is still "auto"; a list of rates that is not as long as the parameter groups. '
        "get_last_lr asserts until the scheduler has stepped, which fp16 delays by its first skipped steps.",
        remedy="The params of that type and numbers for them; one number instead of a list; read the rate from "
        "optimizer.param_groups.",
        evidence=("deepspeed.runtime.lr_schedules",),
    ),
    Fact(
        id="of_fused_adam",
        names=(
            "FusedAdam",
            "FusedLamb",
            "FusedLion",
            "FusedAdamBuilder",
            "multi_tensor_adam",
            "deepspeed/ops/adam/fused_adam.py:__init__",
            "deepspeed/ops/adam/fused_adam.py:step",
        ),
        title="FusedAdam: a compiled optimizer for parameters on the GPU",
        what="The config's Adam or AdamW without offload is DeepSpeed's FusedAdam, whose operator fused_adam is "
        "compiled on first use: it needs a CUDA toolkit of torch's version, ninja and a compiler, on every machine. "
        "Its step takes parameters on the current GPU in fp32, fp16 or bf16 only: on the CPU, or on another GPU than "
        "torch.cuda.set_device's, it fails or accesses illegal memory.",
        remedy='"torch_adam": true in the optimizer\'s params, or torch.optim.AdamW(fused=True), need no compiler; '
        "with offload_optimizer DeepSpeedCPUAdam.",
        evidence=("deepspeed.ops.adam.fused_adam.FusedAdam",),
    ),
)
