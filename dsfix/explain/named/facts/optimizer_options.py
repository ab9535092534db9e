"""The sections optimizer and scheduler of the config."""

from __future__ import annotations

from ..fact import Fact

FACTS = (
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
