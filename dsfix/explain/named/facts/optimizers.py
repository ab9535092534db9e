"""DeepSpeed's optimizers, and what ZeRO does to others."""

from __future__ import annotations

from ..fact import Fact

_CONFIGURED = "deepspeed/runtime/engine.py: DeepSpeedEngine._configure_basic_optimizer"

FACTS = (
    Fact(
        id="fused_adam",
        names=("FusedAdam", "FusedAdamBuilder", "deepspeed/ops/adam/fused_adam.py:__init__"),
        title="FusedAdam: DeepSpeed's Adam for the GPU",
        what='"type": "Adam" or "AdamW" in the config is FusedAdam, unless offload makes it DeepSpeedCPUAdam: '
        "FusedAdam is no name for the config. It is AdamW by default, takes no amsgrad and no fused or foreach, and is "
        "compiled at its first use, for which a CUDA toolkit of torch's version, a compiler and ninja are needed.",
        remedy="\"torch_adam\": true among the optimizer's params is torch's own AdamW, which compiles nothing.",
        evidence=(_CONFIGURED, "deepspeed/ops/adam/fused_adam.py"),
    ),
    Fact(
        id="cpu_adam",
        names=("DeepSpeedCPUAdam", "CPUAdam", "CPUAdamBuilder", "cpuadam.step"),
        title="DeepSpeedCPUAdam: Adam on the host",
        what="It is for offload_optimizer, which refuses most other optimizer objects, and updates parameters on the "
        'CPU only: with parameters on the GPU its step raises. The config has no name for it ("Adam" with offload is '
        "it). It is compiled at first use, with the CUDA toolkit where there is a GPU, for this CPU's instructions: "
        "on another it may crash. Few threads (OMP_NUM_THREADS=1 of torchrun) make it slow.",
        remedy='"optimizer": {"type": "AdamW"} and offload_optimizer; or DeepSpeedCPUAdam(params) of the script with '
        "offload. OMP_NUM_THREADS = cores / ranks.",
        evidence=("deepspeed/ops/adam/cpu_adam.py",),
    ),
    Fact(
        id="adam_modes",
        names=("adam_w_mode", "adamw_mode", "torch_adam"),
        title="Adam or AdamW in DeepSpeed's config",
        what='"type": "Adam" is AdamW, with decoupled weight decay, unless "adam_w_mode": false is among its params; '
        '"AdamW" always is. torch_adam takes torch\'s class, also with offload, where it is much slower than '
        "DeepSpeedCPUAdam. Results differ from torch's in the last digits.",
        remedy='"adam_w_mode": false for L2 regularization as torch.optim.Adam has it.',
        patches=("config_dict_reused",),
        evidence=(_CONFIGURED,),
    ),
    Fact(
        id="onebit_optimizers",
        names=(
            *("OneBitAdam", "OnebitAdam", "OneBitLamb", "OnebitLamb", "ZeroOneAdam"),
            *("freeze_step", "cuda_aware", "comm_backend_name", "NcclBackend", "MpiBackend", "compressed_allreduce"),
            "deepspeed/runtime/fp16/onebit/adam.py:step",
            "deepspeed/runtime/fp16/onebit/lamb.py:step",
        ),
        title="1-bit Adam, 0/1 Adam and 1-bit LAMB",
        what="Through 0.19.6; 0.19.7 removed them. They do not go with ZeRO (an assertion), and are tested in fp16 "
        "only. Up to freeze_step they are plain Adam with a full all-reduce; only then communication is compressed, "
        "and parameters that get no gradient, or masks, may make it diverge. The backend nccl needs cupy of the CUDA "
        "version, mpi needs mpi4py.",
        remedy="freeze_step at 15 to 25 % of all steps, stage 0, fp16. With ZeRO: ZeRO++ quantized gradients instead.",
        patches=("onebit_lamb_empty_parameter",),
        evidence=(_CONFIGURED, "deepspeed/runtime/fp16/onebit/adam.py"),
    ),
    Fact(
        id="lamb_optimizer",
        names=("FusedLamb",),
        title="LAMB, and FP16_UnfusedOptimizer",
        what="Without ZeRO, fp16 with another optimizer than FusedAdam is wrapped in FP16_UnfusedOptimizer. LAMB "
        "asserts dynamic loss scaling (loss_scale 0), and is not among those that ZeRO accepts without "
        "zero_allow_untested_optimizer; its per-layer norms are then of flat partitions.",
        remedy="LAMB without ZeRO; or Adam.",
        patches=("fp16_unfused_norm_scaled",),
        evidence=("deepspeed/runtime/engine.py: _configure_fp16_optimizer, _do_sanity_check",),
    ),
    Fact(
        id="lion_and_adagrad",
        names=("FusedLion", "DeepSpeedCPULion", "DeepSpeedCPUAdagrad"),
        title="DeepSpeed's Lion and Adagrad",
        what='"Lion" in the config is FusedLion, with optimizer offload DeepSpeedCPULion; "Adagrad" is torch\'s, with '
        "offload DeepSpeedCPUAdagrad. All are compiled at first use. Lion wants a learning rate some 3 to 10 times "
        "smaller than Adam's; universal checkpoints and offload_states are for Adam.",
        remedy="A current DeepSpeed (Lion: 0.11.0 and later).",
        patches=("zero_adagrad_groups", "half_adagrad_checkpoint"),
        evidence=(_CONFIGURED,),
    ),
    Fact(
        id="muon_optimizer",
        names=("use_muon", "muon_lr", "adam_lr", "MuonWithAuxAdam", "ns_method", "muon_optimizer"),
        title="Muon in DeepSpeed",
        what="It takes the matrices (use_muon, set by deepspeed.initialize for all with two dimensions or more, since "
        "0.18.1 without embeddings and lm_head, by name), Adam the rest; muon_lr and adam_lr (0.18.3 and later) "
        "replace lr. It exists since 0.17.6 for ZeRO-1/2, since 0.18.9 for ZeRO-3, which refuses reduce_scatter (the "
        "default). Without ZeRO it is SGD before 0.19.7.",
        remedy='A current DeepSpeed; "reduce_scatter": false with ZeRO-3, and before 0.19.3 with ZeRO-1/2.',
        patches=("muon_param_groups", "muon_reduce_scatter", "muon_without_zero"),
        evidence=("deepspeed/__init__.py: set_optimizer_flags", _CONFIGURED),
    ),
    Fact(
        id="eight_bit_optimizers",
        names=(
            *("Adam8bit", "AdamW8bit", "PagedAdamW8bit", "adamw_8bit", "paged_adamw_8bit", "adamw_bnb_8bit"),
            *("paged_adamw_32bit", "bnb.optim", "AdamW4bit"),
        ),
        title="8-bit optimizers with ZeRO",
        what="ZeRO accepts them with zero_allow_untested_optimizer only, which transformers sets. It gives them flat "
        "partitions of all parameters: settings by module (32 bits for embeddings) no longer apply, and the "
        "partitions are small already. With offload_optimizer accelerate puts DeepSpeedCPUAdam in their place, and "
        "DeepSpeed alone refuses them. Universal checkpoints do not know their states.",
        remedy="The config's AdamW with offload_optimizer, or ZeRO without offload and "
        '"zero_allow_untested_optimizer": true.',
        evidence=("deepspeed/runtime/zero/utils.py: ZERO_SUPPORTED_OPTIMIZERS",),
    ),
    Fact(
        id="optimizers_by_shape",
        names=(
            *("galore_adamw", "galore_adamw_layerwise", "GaLoreAdamW", "apollo_adamw", "optim.Adafactor"),
            *("transformers.Adafactor", "optim_target_modules", "use_galore"),
        ),
        title="optimizers that use a matrix's shape, with ZeRO",
        what="ZeRO-1 to 3 hand the optimizer flat one-dimensional partitions. GaLore's projections, Adafactor's "
        "factored moments, Shampoo and the like find no matrices there: they fall back to what they do for vectors, "
        "save no memory, or fail. Layer-wise variants, which step in the backward pass, exclude DeepSpeed.",
        remedy="AdamW with ZeRO, whose states are divided among the ranks; or such an optimizer without ZeRO (stage "
        "0).",
        evidence=("deepspeed/runtime/zero/stage_1_and_2.py: DeepSpeedZeroOptimizer.__init__",),
    ),
    Fact(
        id="zero_wraps_optimizer",
        names=(
            *("DeepSpeedZeroOptimizer", "DeepSpeedZeroOptimizer_Stage3", "BF16_Optimizer", "FP16_Optimizer"),
            *("BF16Optimizer", "DeepSpeedZeRoOffload"),
        ),
        title="the optimizer that deepspeed.initialize returns",
        what="It wraps the script's: DeepSpeedZeroOptimizer for ZeRO-1/2, …_Stage3 for 3, BF16_Optimizer for bf16 "
        "with pipelines, with ZeRO-1 and fp32 accumulation, and before 0.17.6 without ZeRO; FP16_Optimizer otherwise "
        "without ZeRO, in fp32 nothing; DeepSpeedZeRoOffload for ZeRO-3 without an optimizer. isinstance(…, "
        "torch.optim.Optimizer) is false of them, and they do not call closures.",
        remedy="Leave the step to engine.step(), and make schedulers for the script's own optimizer, before "
        "deepspeed.initialize.",
        beside=("fails", "learning rate", "differs", "bf16", "how"),
        evidence=("deepspeed/runtime/engine.py: _do_optimizer_sanity_check",),
    ),
)
