"""The sections optimizer and scheduler of the config."""

from __future__ import annotations

from ..fact import Fact

FACTS = (
    Fact(
        id="muon_updates",
        names=(
            "use_muon",
            "muon_lr",
            "MuonWithAuxAdam",
            "save_muon_momentum_buffer_in_memory",
        ),
        beside=(
            "loss",
            "differs",
            "not falling",
            "learning rate",
            "zero-1",
            "zero-2",
            "zero-3",
            "wrong",
            "fails",
            "results",
        ),
        title="Muon: releases with wrong updates",
        what="Without ZeRO it is plain SGD in 0.17.6 to 0.19.6, matrices that two ranks share get a wrong update in "
        "ZeRO-1 and 2 through 0.19.2, and groups' own lr and weight_decay are ignored in 0.19.2 to 0.19.6. ZeRO-3 "
        "(0.18.9 and later) needs reduce_scatter false.",
        remedy="DeepSpeed 0.19.7 or later, or dsfix's patches.",
        affects={"deepspeed": ">=0.17.6"},
        patches=(
            "muon_without_zero",
            "muon_reduce_scatter",
            "muon_param_groups",
        ),
        evidence=("deepspeed.runtime.engine.DeepSpeedEngine._configure_basic_optimizer",),
    ),
    Fact(
        id="total_number_of_steps",
        names=("total_num_steps",),
        beside=(
            "learning rate",
            "steps",
            "fails",
            "wrong",
            "resuming",
            "how",
        ),
        title="total_num_steps: the number of optimizer steps",
        what="WarmupDecayLR and WarmupCosineLR require it. It counts steps of the optimizer, not micro-batches: too "
        "small, and WarmupDecayLR stays at 0 for the rest, while WarmupCosineLR rises again through 0.19.2; too "
        'large, and the rate hardly falls. The Trainer fills "auto", accelerate with DummyScheduler only.',
        remedy="total_num_steps = epochs * batches per rank / gradient_accumulation_steps; the same when resuming.",
        patches=("warmup_cosine_past_end",),
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
        "engine prefers the config's through 0.14.4, since 0.14.5 one that deepspeed.initialize is given. accelerate "
        "wants DummyOptim where the config has an optimizer, and DummyScheduler where it has a scheduler. torch's "
        "schedulers refuse an optimizer that DeepSpeed has wrapped.",
        remedy="Remove the section scheduler to use the script's, and optimizer likewise; or "
        "DummyScheduler(optimizer, total_num_steps=…, warmup_num_steps=…).",
        evidence=("deepspeed.runtime.engine.DeepSpeedEngine._configure_lr_scheduler",),
    ),
    Fact(
        id="at_fused_adam_step",
        names=("deepspeed/ops/adam/fused_adam.py:step",),
        title="FusedAdam's step fails",
        what="It takes parameters on the current GPU in fp32, fp16 or bf16 only. Parameters on the CPU, or on another "
        "GPU than torch.cuda.set_device's, make it fail or access illegal memory.",
        remedy="The model on this rank's GPU, and torch.cuda.set_device(local_rank) before; with offload_optimizer "
        "DeepSpeedCPUAdam.",
        evidence=("deepspeed.ops.adam.fused_adam.FusedAdam",),
    ),
)
