"""Options of the precision: fp16, bf16, torch_autocast, and the dtypes of gradients."""

from __future__ import annotations

from ..fact import Fact

FACTS = (
    Fact(
        id="of_auto_cast",
        names=(
            "fp16.auto_cast",
            "fp16_auto_cast",
            "_cast_inputs_half",
        ),
        title="fp16.auto_cast: only inputs are cast, and only for fp16",
        what="It casts floating point inputs that are positional arguments of the forward pass to half; keyword "
        "arguments, which transformers uses, it does not; through 0.15.2 also integers (token ids, labels). bf16 has "
        "no such key, and it is not torch.autocast.",
        remedy="Cast the inputs in the script to the dtype of the weights; or torch_autocast of 0.17.2 and later.",
        evidence=("deepspeed.runtime.engine.DeepSpeedEngine._cast_inputs_half",),
    ),
    Fact(
        id="of_torch_autocast",
        names=(
            "torch_autocast",
            "lower_precision_safe_modules",
        ),
        title="torch_autocast: weights in fp32, computing in bf16 or fp16",
        what="Since 0.17.2, a section of its own: with fp16 and bf16 off the weights stay in fp32, the forward pass "
        "runs in autocast, and linear and convolution weights are sent in the lower dtype. With fp16 or bf16 on, it "
        "is refused through 0.18.2, and later the weights are in 16 bits. It holds for all engines of a process, and "
        "quantized weights of ZeRO++ refuse it. ZeRO-3 fails on gathering mixed dtypes through 0.19.2.",
        remedy='"torch_autocast": {"enabled": true, "dtype": "bfloat16"} with "bf16" off, and no torch.autocast in '
        "the script; DeepSpeed 0.19.3 or later.",
        affects={"deepspeed": ">=0.17.2"},
        patches=("zero3_autocast_tied_gradients",),
        evidence=(
            "deepspeed.runtime.torch_autocast",
            "https://github.com/deepspeedai/DeepSpeed/pull/8113",
        ),
    ),
    Fact(
        id="autocast_in_the_script",
        names=(
            "torch.autocast",
            "cuda.amp",
            "torch.amp",
            "amp.autocast",
            "is_autocast_enabled",
        ),
        beside=(
            "fp16",
            "bf16",
            "zero-3",
            "fails",
            "slow",
            "nan",
            "differs",
            "how",
        ),
        title="torch.autocast beside DeepSpeed",
        what="The sections fp16 and bf16 cast the weights themselves. autocast of the script is switched off within "
        "the engine since 0.17.6 unless the config has torch_autocast; 0.17.2 to 0.17.5 raise an assertion. Before, "
        "it works, and only covers what torch lists.",
        remedy='No autocast around the engine, inputs in the dtype of the weights; "torch_autocast" in the config '
        "(0.17.2 and later) for weights in fp32.",
        patches=("zero3_nested_autocast_assertion",),
        evidence=("deepspeed.runtime.torch_autocast.autocast_if_enabled",),
    ),
    Fact(
        id="of_grad_accum_dtype",
        names=(
            "grad_accum_dtype",
            "accumulate_allreduce_grads_in_fp32",
            "gradient_accumulation_dtype",
        ),
        title="data_types.grad_accum_dtype: the dtype in which gradients are added up",
        what="A key of the section data_types; by default ZeRO accumulates in the dtype of the model, in 16 bits. "
        "bf16 with ZeRO-1 and fp32, without offload, is another optimizer (BF16_Optimizer), whose checkpoints "
        "zero_to_fp32 does not read, and which 0.17.6 to 0.18.4 silently do not use. With ZeRO-1 and any other mix "
        "gradients are not averaged over the ranks through 0.19.7; without ZeRO most mixes are refused.",
        remedy='"data_types": {"grad_accum_dtype": "fp32"} for bf16 with many micro-batches, with a current '
        "DeepSpeed; check CONFIG of dsfix names the bugs of the installed one.",
        patches=(
            "zero1_accumulation_dtype_unreduced",
            "bf16_zero1_silently_off",
            "zero3_fp32_gradients_rounded",
        ),
        evidence=("deepspeed.runtime.engine.DeepSpeedEngine.get_data_types",),
    ),
    Fact(
        id="of_communication_data_type",
        names=(
            "communication_data_type",
            "seq_parallel_communication_data_type",
            "seq_parallel_comm_data_type",
        ),
        title="communication_data_type: the dtype in which gradients are sent",
        what="fp16, bf16 (bfp16 through 0.14.0) or fp32; by default that of the section fp16 or bf16; "
        "seq_parallel_communication_data_type (fp32) with sequence parallelism. Where it differs from the parameters' "
        "dtype, ZeRO-1 and 2 fail in 0.17.2 to 0.18.1 (KeyError, or start … exceeds dimension size), ZeRO-3 with "
        "reduce_scatter false ignores it through 0.12.4, and ZeRO-3 rounds to 16 bits in between through 0.19.1.",
        remedy="Leave it out; fp32 in DeepSpeed 0.19.2 or later where sums over many ranks lose precision. Through "
        "0.16.4 the key for sequence parallelism is seq_parallel_comm_data_type.",
        patches=(
            "zero12_full_bucket_dtype",
            "zero12_parameter_larger_than_bucket",
            "zero3_contiguous_communication_dtype",
            "zero3_fp32_gradients_rounded",
        ),
        evidence=("deepspeed.runtime.engine.DeepSpeedEngine.communication_data_type",),
    ),
    Fact(
        id="of_immediate_grad_update",
        names=("immediate_grad_update",),
        title="bf16.immediate_grad_update: for BF16_Optimizer only",
        what="It concerns bf16 with ZeRO-1 and fp32 accumulation, and pipelines: gradients are added to the fp32 ones "
        "in the backward pass, which frees the 16 bit ones, instead of after it. The default is true in 0.16.5 to "
        "0.17.0 and false otherwise; 0.14.1 fails with it (no attribute '_zero'). Other stages do not read it.",
        remedy="true to save memory in those cases; else leave it out.",
        affects={"deepspeed": ">=0.13.3"},
        evidence=("deepspeed.runtime.bf16_optimizer.BF16_Optimizer",),
    ),
    Fact(
        id="of_check_grad_overflow",
        names=("check_grad_overflow",),
        title="bf16.check_grad_overflow: steps on inf and nan",
        what="The key exists since 0.17.1. Through 0.19.2 it is false by default: bf16 with ZeRO takes a step on inf "
        "or nan gradients, which makes all weights nan; since 0.19.3 true is the default, and such steps are skipped, "
        "as in fp16. ZeRO-3 ignores it through 0.19.7, and takes such steps in older releases, too; ZeRO-1 and 2 skip "
        "them before 0.17.1.",
        remedy='"bf16": {"enabled": true, "check_grad_overflow": true} with ZeRO-1 and 2 in 0.17.1 or later; ZeRO-3: '
        "0.19.8 or dsfix's patch. A single skipped step is harmless; many come from the data or the model.",
        patches=("zero3_bf16_nonfinite_step",),
        evidence=(
            "https://github.com/deepspeedai/DeepSpeed/pull/6976",
            "deepspeed.runtime.precision_config",
        ),
    ),
    Fact(
        id="of_master_weights",
        names=(
            "fp16_master_weights_and_grads",
            "fp16_master_weights_and_gradients",
            "bf16_master_weights_and_grads",
            "bf16_optimizer_states",
        ),
        title="master weights in 16 bits: where it is possible, and what it costs",
        what="fp16_master_weights_and_grads needs ZeRO, offload_optimizer and DeepSpeedCPUAdam; "
        "bf16_master_weights_and_grads (0.18.3 and later) needs the same unless bf16_optimizer_states is true as "
        "well. They save 4 bytes per parameter (with bf16_optimizer_states 8), and small updates are lost to "
        "rounding: the loss can stop falling. They exclude each other.",
        remedy="fp32 master weights (the default) unless memory forces it; then compare the loss.",
        evidence=("deepspeed.runtime.base_optimizer.ZeROOptimizer._configure_master_weights",),
    ),
    Fact(
        id="of_buffer_dtype",
        names=(
            "buffer_dtype",
            "data_types.param_dtype",
        ),
        beside=(
            "fp16",
            "bf16",
            "differs",
            "fails",
            "nan",
        ),
        title="data_types.param_dtype, buffer_dtype: buffers are no longer cast",
        what="Through 0.19.1 fp16 and bf16 cast the model's parameters and buffers (rotary frequencies, routing "
        "biases lose precision). Since 0.19.2 buffers keep their dtype, so that results can differ, and modules that "
        "mix fp32 buffers with half inputs can fail or compute in fp32; data_types.buffer_dtype casts them as before. "
        "param_dtype must not contradict the enabled section.",
        remedy='"data_types": {"buffer_dtype": "bf16"} if the model needs it; otherwise leave both out.',
        affects={"deepspeed": ">=0.19.2"},
        evidence=("deepspeed.runtime.engine.DeepSpeedEngine._mixed_precision_dtypes",),
    ),
    Fact(
        id="of_apex_amp",
        names=(
            "opt_level",
            "amp.enabled",
            "apex.amp",
            "fp16_opt_level",
            "fp16_backend",
        ),
        title="the section amp: apex.amp, which is deprecated",
        what="amp hands the model to apex, which must be built from source (pip's apex is another package). It works "
        "without ZeRO only, and not with fp16 or bf16; the Trainer fills it in only for fp16_backend apex. DeepSpeed "
        "0.19.8 removed it and refuses the section.",
        remedy='"bf16" or "fp16" in its place, or torch_autocast.',
        evidence=("deepspeed.runtime.engine.DeepSpeedEngine._do_optimizer_sanity_check",),
    ),
    Fact(
        id="at_bf16_optimizer",
        names=(
            "BF16_Optimizer",
            "BF16Optimizer",
            "deepspeed/runtime/bf16_optimizer.py:_setup_for_real_optimizer",
        ),
        title="BF16_Optimizer: where it is used, and what fails in it",
        what="It is the optimizer of bf16 with ZeRO-1 and grad_accum_dtype fp32, of bf16 in pipelines without ZeRO, "
        "and through 0.17.5 of all bf16 without ZeRO. It asserts a gradient norm above 0 through 0.19.7 (a nan loss, "
        "or a batch without labels, ends the job), fails on a parameter group that is frozen altogether, and "
        "zero_to_fp32 cannot merge its checkpoints.",
        remedy="ZeRO-2, or ZeRO-1 without grad_accum_dtype; groups without trainable parameters left out; look at the "
        "loss of that step.",
        patches=(
            "bf16_nonfinite_step_ends_job",
            "bf16_gradients_unreduced",
            "bf16_zero1_last_microbatch_local",
        ),
        evidence=("deepspeed.runtime.bf16_optimizer.BF16_Optimizer",),
    ),
    Fact(
        id="at_fp16_optimizers",
        names=(
            "FP16_Optimizer",
            "FP16_UnfusedOptimizer",
            "fp16_optimizer",
        ),
        title="FP16_Optimizer, FP16_UnfusedOptimizer: fp16 and bf16 without ZeRO",
        what="They wrap the optimizer where no ZeRO stage is set (bf16: since 0.17.6): the fused one for FusedAdam "
        "and 1-bit Adam, the other one for all others. In fp16 the fused one never changes the weights in 0.17.6 to "
        "0.18.1; bf16 in the other one never zeroes gradients in 0.17.6 to 0.18.5. They move frozen parameters by "
        "weight decay through 0.19.0; since 0.19.1 the fused one fails on a group without trainable ones.",
        remedy="ZeRO-1, which has none of these; or a current DeepSpeed.",
        patches=(
            "fp16_optimizer_never_steps",
            "bf16_stage0_no_update",
            "frozen_parameters_decayed",
        ),
        evidence=("deepspeed.runtime.engine.DeepSpeedEngine._configure_fp16_optimizer",),
    ),
    Fact(
        id="of_half_enabled",
        names=(
            "fp16.enabled",
            "bf16.enabled",
            "bfloat16.enabled",
            "fp16_enabled",
            "bfloat16_enabled",
            "bf16_enabled",
        ),
        beside=(
            "fails",
            "differs",
            "nan",
            "memory",
            "oom",
            "wrong",
            "how",
        ),
        title="fp16 and bf16 in the config: the whole model is cast",
        what="deepspeed.initialize casts all parameters, norms too, to the half type and keeps fp32 copies in the "
        "optimizer; nothing is autocast, so inputs must be cast and sensitive operations run in 16 bits. Only one "
        'section may be enabled, and it should be what the model, --bf16 or --mixed_precision say. "auto" that '
        "nothing has filled in counts as false since 0.17.1 (fp32), and as true before.",
        remedy='true or false instead of "auto" without the Trainer or accelerate; torch_autocast (0.17.2 and later) '
        "to keep weights in fp32.",
        patches=("auto_precision_dropped",),
        evidence=("deepspeed.runtime.engine.DeepSpeedEngine._configure_distributed_model",),
    ),
)
