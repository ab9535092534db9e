"""ZeRO's options for gradients and for the update: buckets, overlap, partitions; those of stages 1 and 2."""

from __future__ import annotations

from ..fact import Fact

FACTS = (
    Fact(
        id="of_reduce_bucket_size",
        names=(
            "reduce_bucket_size",
            "zero_reduce_bucket_size",
        ),
        title="reduce_bucket_size: elements of the buffer for gradients",
        what="It counts elements, not bytes: 5e8, the default, is 1 GB in 16 bits. With contiguous_gradients the "
        "buffer is allocated whole, however small the model is, and ZeRO-2 (ZeRO-1 since 0.13.0) allocates two with "
        "overlap_comm. If results depend on it, overlap_comm is the likely cause. 0.17.2 to 0.18.1 fail in ZeRO-1 and "
        "2 where gradients fill it and are sent in another dtype.",
        remedy='1e8 or less where memory is short or the model is small; an integer above 0 ("auto" only with the '
        'Trainer or accelerate). If the loss depends on it: "overlap_comm": false.',
        patches=(
            "zero12_overlap_bucket_refilled",
            "zero12_overlap_same_bucket",
            "zero12_full_bucket_dtype",
            "zero12_parameter_larger_than_bucket",
        ),
        evidence=("deepspeed.runtime.zero.stage_1_and_2.DeepSpeedZeroOptimizer.setup_buckets",),
    ),
    Fact(
        id="of_allgather_bucket_size",
        names=(
            "allgather_bucket_size",
            "allgather_partitions",
        ),
        title="allgather_bucket_size and allgather_partitions: mostly without effect",
        what="Nothing reads allgather_partitions. allgather_bucket_size (elements, an even number) is for ZeRO-1, "
        "ZeRO-2 and BF16_Optimizer, which gather the updated weights at the end of a step; since 0.12.4 they gather "
        "all at once, into weights that exist already, so that it neither saves nor takes memory. ZeRO-3 does not "
        "read it.",
        remedy="Smaller reduce_bucket_size to save memory with ZeRO-1 and 2; with ZeRO-3 stage3_prefetch_bucket_size "
        "and stage3_max_live_parameters.",
        affects={"deepspeed": ">=0.12.4"},
        evidence=("deepspeed.runtime.utils.all_gather_dp_groups",),
    ),
    Fact(
        id="of_overlap_comm",
        names=("overlap_comm",),
        title="overlap_comm: gradients are reduced while the backward pass goes on",
        what="The default is true for ZeRO-3 and false otherwise. In ZeRO-1 (since 0.13.0) and 2 it takes a second "
        "bucket, and could reduce wrong gradients (worse or zero loss, nan): buckets are filled again too early "
        "through 0.14.2 and in 0.17.2 to 0.17.4, and gradients larger than a bucket are freed while in use in most "
        "releases. Without ZeRO, and in pipelines with ZeRO-1, it does nothing.",
        remedy='"overlap_comm": false with ZeRO-1 and 2 tells whether it is that; otherwise leave it out.',
        patches=(
            "zero12_overlap_bucket_refilled",
            "zero12_overlap_same_bucket",
            "zero12_overlap_large_gradient_freed",
            "zero1_overlap_left_out_microbatch",
        ),
        evidence=(
            "https://github.com/deepspeedai/DeepSpeed/pull/5606",
            "https://github.com/deepspeedai/DeepSpeed/pull/7805",
        ),
    ),
    Fact(
        id="of_contiguous_gradients",
        names=("contiguous_gradients",),
        title="contiguous_gradients: the buffer for gradients",
        what="Gradients are copied into one buffer of reduce_bucket_size elements (the default, true; without MoE "
        "ZeRO-1 ignores it before 0.13.0). With offload_optimizer ZeRO-1 and 2 do so whatever it says, and MoE with "
        "ZeRO-2 needs it. With false each gradient has memory of its own; engine.destroy() then fails with ZeRO-3 "
        "through 0.16.4.",
        remedy="Leave it true, with a smaller reduce_bucket_size where memory is short.",
        evidence=("deepspeed.runtime.zero.stage_1_and_2.DeepSpeedZeroOptimizer.__init__",),
    ),
    Fact(
        id="of_reduce_scatter",
        names=("reduce_scatter",),
        title="reduce_scatter: what it does not go with",
        what="With reduce_scatter (true, the default) ZeRO-2 and 3 (ZeRO-1 before 0.13.0) refuse prescale_gradients "
        "and gradient_predivide_factor other than 1, and dtypes of communication other than fp16, bf16 and fp32. "
        "ZeRO-3 with Muon refuses reduce_scatter; zero_quantized_gradients and MoE with ZeRO-2 need it. With false "
        "gradients are all-reduced, which sends more.",
        remedy="Leave it true; false only for what the message names.",
        evidence=("deepspeed.runtime.zero.stage_1_and_2.DeepSpeedZeroOptimizer.__init__",),
    ),
    Fact(
        id="of_prescale_gradients",
        names=(
            "prescale_gradients",
            "gradient_predivide_factor",
        ),
        title="prescale_gradients, gradient_predivide_factor: not with reduce_scatter",
        what="prescale_gradients divides gradients by the number of ranks before they are summed rather than "
        "afterwards; gradient_predivide_factor divides by a part of it before, by the rest afterwards: against "
        "overflow in fp16 on many GPUs. ZeRO-2 and 3 refuse both unless reduce_scatter is false. They change neither "
        "the learning rate nor the average.",
        remedy='Leave them out; in bf16 they are of no use. Otherwise "reduce_scatter": false.',
        evidence=(
            "deepspeed.runtime.engine.DeepSpeedEngine.allreduce_bucket",
            "deepspeed.runtime.zero.stage_1_and_2.DeepSpeedZeroOptimizer.__init__",
        ),
    ),
    Fact(
        id="of_round_robin_gradients",
        names=("round_robin_gradients",),
        title="round_robin_gradients: another order of the partitions, for offload with ZeRO-1 and 2",
        what="It deals the parameters out to the ranks in turn, so that copying gradients to the CPU is shared: of "
        "use with offload_optimizer, several ranks and accumulation. It changes which rank holds which part of the "
        "optimizer, so a checkpoint is to be loaded with the same setting. ZeRO-3 does not read it, nor ZeRO-1 before "
        "0.13.0.",
        remedy="Leave it false without offload; keep it as it was when you resume.",
        evidence=("deepspeed.runtime.zero.stage_1_and_2.DeepSpeedZeroOptimizer._round_robin_reorder",),
    ),
    Fact(
        id="of_use_multi_rank_bucket_allreduce",
        names=("use_multi_rank_bucket_allreduce",),
        title="use_multi_rank_bucket_allreduce: one all-reduce instead of a reduction per rank",
        what="Since 0.12.4 (true by default) ZeRO-1 and 2 join the parts of a bucket that belong to several ranks "
        "into one all-reduce. With false, each part is reduced to its rank; with MoE and 1 < ep_size < ranks owners "
        "of experts' gradients do not get the sum then, through 0.19.7. Whatever it says, buckets with experts are "
        "divided by the number of ranks twice through 0.13.0.",
        remedy="Leave it true; with MoE 0.13.1 or later.",
        affects={"deepspeed": ">=0.12.4"},
        patches=(
            "zero12_experts_bucket_divided_twice",
            "zero12_experts_reduced_to_other_rank",
        ),
        evidence=("deepspeed.runtime.zero.stage_1_and_2.DeepSpeedZeroOptimizer.average_tensor",),
    ),
    Fact(
        id="of_ignore_unused_parameters",
        names=(
            "ignore_unused_parameters",
            "find_unused_parameters",
            "ddp_find_unused_parameters",
        ),
        title="unused parameters: DDP's options do not reach DeepSpeed",
        what="find_unused_parameters is an option of torch's DDP, which DeepSpeed does not use. ZeRO takes a "
        "parameter without a gradient for unused by default; only offload_optimizer with ZeRO-1 and 2 looks at "
        "ignore_unused_parameters (false: an assertion), and even then updates such parameters with an old gradient "
        "(dsfix has a patch). Ranks that use different modules hang under ZeRO-3 all the same.",
        remedy="Leave it true. The same modules on all ranks: add 0 * output.sum() of an unused one to the loss; "
        "deepspeed.utils.set_z3_leaf_modules for experts.",
        patches=("zero12_offload_left_out_gradients",),
        evidence=(
            "deepspeed.runtime.zero.stage_1_and_2.DeepSpeedZeroOptimizer.complete_grad_norm_calculation_for_cpu_offload",
        ),
    ),
    Fact(
        id="of_elastic_checkpoint",
        names=(
            "elastic_checkpoint",
            "load_from_fp32_weights",
        ),
        title="elastic_checkpoint, load_from_fp32_weights: how ZeRO-1 and 2 save and load the optimizer",
        what="elastic_checkpoint (false by default, ZeRO-1 and 2 only; ZeRO-3 refuses it through 0.19.2 and ignores "
        "it since) stores the optimizer so that another number of ranks can load it, and must be set when saving. "
        "With torch's Adam saving fails through 0.18.1 and loading since 0.13.2; through 0.13.1 states are shifted. "
        "load_from_fp32_weights false starts the fp32 copies from the 16 bit weights.",
        remedy='Universal checkpoints instead: python -m deepspeed.checkpoint.ds_to_universal, and "checkpoint": '
        '{"load_universal": true}.',
        patches=(
            "elastic_checkpoint_alignment",
            "elastic_checkpoint_scalar_step",
            "elastic_checkpoint_torch_adam",
        ),
        evidence=("deepspeed.runtime.zero.stage_1_and_2.DeepSpeedZeroOptimizer.load_state_dict",),
    ),
    Fact(
        id="of_legacy_stage1",
        names=("legacy_stage1",),
        title="legacy_stage1: the old ZeRO-1, which is gone",
        what="The engine raises an exception if it is true; false does nothing.",
        remedy="Delete the key.",
        evidence=("deepspeed.runtime.engine.DeepSpeedEngine._configure_zero_optimizer",),
    ),
    Fact(
        id="of_zero_allow_untested_optimizer",
        names=(
            "zero_allow_untested_optimizer",
            "is_zero_supported_optimizer",
        ),
        title="zero_allow_untested_optimizer: ZeRO with an optimizer that DeepSpeed does not list",
        what="ZeRO accepts torch's Adam, AdamW and Adagrad, its own FusedAdam, CPU optimizers, Lion and (0.17.6) "
        "Muon, and asks for this key (top level of the DeepSpeed config, not of zero_optimization) for all others, "
        "subclasses too. They see flat partitions: what looks at a parameter's shape (Adafactor, Shampoo, LAMB, 8 bit "
        "states, layer rates by name) works differently or fails.",
        remedy='"zero_allow_untested_optimizer": true for an optimizer that treats each element alone; with '
        'offload_optimizer also "zero_force_ds_cpu_optimizer": false.',
        evidence=("deepspeed.runtime.zero.utils.ZERO_SUPPORTED_OPTIMIZERS",),
    ),
    Fact(
        id="of_zero_force_ds_cpu_optimizer",
        names=("zero_force_ds_cpu_optimizer",),
        title="zero_force_ds_cpu_optimizer: offload with an optimizer of one's own",
        what="With offload_optimizer DeepSpeed refuses an optimizer of the script other than its own DeepSpeedCPUAdam "
        "(and DeepSpeedCPULion since 0.17.6), as it would be slow on the CPU. false, at the top level of the "
        "DeepSpeed config, allows it; in accelerate's yaml file the key has no effect. CUDA optimizers (FusedAdam) "
        "cannot run there at all.",
        remedy='"optimizer": {"type": "AdamW", …} in the DeepSpeed config, or deepspeed.ops.adam.DeepSpeedCPUAdam; '
        'else "zero_force_ds_cpu_optimizer": false.',
        evidence=("deepspeed.runtime.engine.DeepSpeedEngine._configure_optimizer",),
    ),
)
