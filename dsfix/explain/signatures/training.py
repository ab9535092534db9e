"""The backward pass and the step: no graph, no gradients, NaN, mixed dtypes, schedulers."""

from __future__ import annotations

from ..signature import Role, Signature, pull

SIGNATURES = (
    Signature(
        id="pipeline_output_without_graph",
        title="pipeline: a stage hands on a tensor that requires no gradient",
        what="The backward pass of a stage runs from each of its floating-point outputs. One of them does not depend "
        "on a parameter that requires a gradient: a float mask or rotary embeddings that are passed along, or the "
        "output of frozen layers. With one stage nothing is handed on. Without a pipeline: one of several losses or "
        "outputs that backward gets at once.",
        remedy="Hand on such tensors as integers or bool, or compute them anew in each stage; make the output of a "
        "frozen first stage require a gradient (requires_grad_()). dsfix's patch pipeline_float_without_gradient lets "
        "a stage hand on such tensors if another output requires a gradient.",
        pattern=r"element [1-9]\d* of tensors does not require grad"
        r"|(?:[Pp]ipeline_?(?:stages|parallel|module)|PipelineModule)[\s\S]{0,1500}"
        r"element 0 of tensors does not require grad",
        role=Role.GENERAL,
        evidence=("https://github.com/tdrussell/qlora-pipe/issues/56",),
    ),
    Signature(
        id="loss_without_graph",
        title="the loss depends on no parameter that requires a gradient",
        what="Most likely reentrant gradient checkpointing with LoRA or a frozen embedding: the first layer's input "
        "requires no gradient, and checkpointing then drops the graph. Otherwise all parameters are frozen, or the "
        "loss was computed under torch.no_grad or from detached tensors.",
        remedy="model.enable_input_require_grads() before training, or "
        'gradient_checkpointing_kwargs={"use_reentrant": False}. Otherwise print which parameters require a gradient.',
        pattern=r"element \d+ of tensors does not require grad and does not have a grad_fn",
        role=Role.POSSIBLE,
        evidence=(
            "https://github.com/locuslab/open-unlearning/pull/28",
            "https://github.com/huggingface/transformers/issues/29982",
        ),
    ),
    Signature(
        id="step_without_gradients",
        title="ZeRO-1/2: a step without gradients",
        what="averaged_gradients is filled by engine.backward and emptied by the step. Most likely: a step without "
        "engine.backward (through 0.18.2 loss.backward() does not suffice), optimizer.step() beside engine.step(), two "
        "steps for one backward pass; or a parameter group that got no gradient.",
        remedy="engine.backward(loss) and engine.step() for each micro-batch, and no optimizer.step() or zero_grad(); "
        "with accelerate only accelerator.backward(loss), which steps.",
        pattern=r"averaged_gradients\[\w+\]\)?:?\s+(?:[^\n]*\n){0,3}?[^\n]*(?:KeyError: \d|'NoneType' object)"
        r"|averaged_gradients is None|in has_overflow_partitioned_grads_serial[\s\S]{0,300}"
        r"(?:KeyError: \d|'NoneType' object)",
        role=Role.POSSIBLE,
        evidence=(
            "https://github.com/deepspeedai/DeepSpeed/issues/1806",
            "https://github.com/deepspeedai/DeepSpeed/issues/686",
        ),
    ),
    Signature(
        id="pipeline_loss_reported",
        title="pipeline parallelism: the loss that is reported is wrong or 0",
        what="From 0.11.2 through 0.12.3 the last stage broadcasts a loss in fp16 or bf16 to stages that receive fp32: "
        "all others report a wrong one, while the training itself is right. In other releases it is something else.",
        remedy="DeepSpeed 0.12.4 or later.",
        pattern=r"(?:PipelineEngine|[Pp]ipeline engine)[^\n]{0,200}"
        r"(?:wrong loss|incorrect loss|zero loss|loss is wrong)"
        r"|(?:wrong|incorrect|zero) loss[^\n]{0,100}(?:PipelineEngine|[Pp]ipeline engine)",
        affects={"deepspeed": ">=0.11.2,<0.12.4"},
        patches=("pipeline_half_loss_broadcast",),
        pattern_of="pipeline_half_loss_broadcast",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="grad_accumulator_gone",
        title="autograd's assertion: a parameter's gradient accumulator is gone",
        what="The backward pass meets a parameter that was replaced or freed since the forward pass. With ZeRO-3 most "
        "likely reentrant gradient checkpointing with frozen parameters (LoRA), a parameter that was replaced after "
        "deepspeed.initialize, or a torch and a DeepSpeed of different ages.",
        remedy="use_reentrant=False or no gradient checkpointing; current releases of both; ZeRO-2, if the model fits.",
        pattern=r"No grad accumulator for a saved leaf|grad_accumulator_\.expired\(\)",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="gradients_nan",
        title="the gradients or the loss are NaN",
        what="transformers logs a NaN loss as 0.0. Most likely: fp16 with a model that was trained in bf16; a batch "
        "whose labels are all masked (-100), or longer than the cutoff; an attention implementation that makes NaN of "
        "padded rows; a learning rate that is too high; or a bug of this DeepSpeed (overlap_comm with ZeRO-1/2 in "
        "some releases).",
        remedy='bf16; another attn_implementation; look at the batch of that step. "overlap_comm": false tells '
        "whether it is DeepSpeed; `python -m dsfix list` shows the known wrong results of the installed release, and "
        "which of them dsfix fixes.",
        # each whole: "grad_norm" alone is in every line of a log
        pattern=r"'grad_norm': nan|'grad_norm': 'nan|grad_norm: nan|grad_norm is nan|grad_norm=nan|grad_norm为nan"
        r"|grad_norm为 nan|grand_norm为nan|grad_norm nan|grad_norm:nan|[Gg]rad norm: nan|rad_norm and loss is nan"
        r"|rad_norm is nan|'loss': nan|'loss': 'nan|loss is nan\b|loss is NaN\b|loss为nan|loss being 0\.0"
        r"|loss is always 0"
        r"|loss is 0\.0\b|loss becomes 0\b|loss becomes nan|loss becomes NaN|[Ll]oss is zero\b"
        r"|loss: nan|loss: NaN|loss=nan|loss = nan|loss = NaN|loss was nan|loss becomes zero|loss is always zero"
        r"|loss is constantly 0|loss turns nan|loss turns to nan|loss turned nan|loss went nan|loss goes nan"
        r"|loss goes to nan|loss got nan|loss gets nan|\bNaN loss\b|\bnan loss\b|NaN gradient|nan gradient"
        r"|is nan or inf\b|nan or inf in |found NaN in local|returned nan values in its"
        r"|norm 出现NAN|norm 出现nan|norm 出现NaN|grad_norm出现nan|grad_norm出现NaN|norm is (?:nan|NaN|NAN|inf)\b"
        r"|norm becomes (?:nan|NaN|NAN|inf)\b"
        r"|loss is inf\b|loss: inf\b|loss=inf\b|loss to NaN|loss to nan|loss drops to 0|loss dropped to 0"
        r"|loss suddenly (?:becomes|became|drops)|training loss is 0\b|loss always 0|loss stays (?:at )?0\b"
        r"|loss变成nan|loss变为nan|loss一直为0|loss一直是0|loss一直是nan|loss始终为0|loss值为nan|loss是nan"
        r"|norm will be (?:nan|NaN|NAN)\b|loss will be (?:nan|NaN|NAN)\b|norm are (?:nan|NaN|NAN)\b"
        r"|loss are (?:nan|NaN|NAN)\b|loss will become (?:nan|NaN)\b|loss & grad_norm is nan"
        r"|出现nan|出现NaN|出现NAN|出现 nan|出现 NaN|变成nan|变为nan|loss为0"
        r"|loss 为 0|loss equals zero|loss equals 0\b|loss is equal to 0|oss may be 0\b|grad norm nan|[Gg]ot loss 0\b"
        r"|loss being 0\b"
        r"|loss is 0\b(?!\.\d*[1-9])|loss was 0\b(?!\.\d*[1-9])|reward nan\b|reward is nan|reward is NaN"
        r"|rewards/\w+': nan|'loss': 0\.0,|'loss': 0\.0}|loss is `nan|logits are nan|output is nan|outputs are nan"
        r"|weights become nan|loss为 nan|损失为0|损失等于0|损失直接等于0|损失变为0|损失一直为0|损失是0|loss等于0"
        r"|loss 等于0|loss变为0"
        r"|loss变成0|loss直接变为0|grad_norm=Nan|grad_norm=NaN|grad_norm: NaN|\"grad_norm\": NaN"
        r"|Nan and Inf values|NaN and Inf values|nan and inf values"
        r"|to Nan and Inf|NaN or Inf in|NaN or inf in|NaN and Inf in|nan and inf in|Loss = 0\b"
        r"|loss values are 0\b|loss values are nan|Loss becomes 0\b|Loss becomes nan|Loss becomes NaN",
        role=Role.POSSIBLE,
        evidence=(
            "https://github.com/deepspeedai/DeepSpeed/issues/5242",
            "https://github.com/2U1/Qwen-VL-Series-Finetune/issues/10",
            "https://github.com/hiyouga/LlamaFactory/issues/8088",
        ),
    ),
    Signature(
        id="probabilities_not_valid",
        title="generation: the probabilities to sample from have inf or nan",
        what="The model's logits are not numbers. Most likely fp16 for a model that was trained in bf16, or weights "
        "that became nan in training, are empty (ZeRO-3 without gathering) or were not loaded; with DeepSpeed's "
        "inference kernels, tensor parallelism or hybrid engine one that does not fit the model.",
        remedy="bf16; print the logits and a few weights before generate; replace_with_kernel_inject=False or one "
        "GPU, or no --enable_hybrid_engine; another attn_implementation, left padding.",
        pattern=r"probability tensor contains either",
        role=Role.POSSIBLE,
        evidence=("https://github.com/zzzhhzzz/Ground-R1/issues/4",),
    ),
    Signature(
        id="dtypes_mixed",
        title="an operation gets tensors of two dtypes",
        what="DeepSpeed casts the parameters to the config's dtype, but not the inputs and the outputs of frozen or "
        "separate models, and does not enter autocast. Most likely: inputs in fp32 for a model in bf16 or fp16, "
        "modules that were kept in fp32 (norms, adapters, a head), a model that casts to fp32 itself (the gate of an "
        "MoE, as DeepSeek-V2's), which does not fit ZeRO-3's replaced linear, or a config without the model's fp16 or "
        "bf16. On the CPU, and on GPUs older than Volta, zero.Init(dtype=...) makes bf16 weights whatever it is given "
        "(0.14.1 or later).",
        remedy="Cast the inputs to the module's dtype; without the model's own cast, or ZeRO-2; load the model in the "
        "dtype that the config enables; pass zero.Init the config (config_dict_or_path) instead of a dtype; "
        '"torch_autocast": {"enabled": true} in the config (0.17.2 or later), or torch.autocast around the forward '
        "pass.",
        pattern=r"mat1 and mat2 (?:must|to) have the same dtype|expected m1 and m2 to have the same dtype"
        r"|expected scalar type (?:Half|BFloat16|Float) but found|expected mat1 and mat2 to have the same dtype"
        r"|Input type \(\S+\) and (?:bias|weight) type \(\S+\) should be the same"
        r"|expected scalar type (?:Half|BFloat16|Float|Double|float|half) but found|expected m1 and m2 to have the same"
        r"|requires the source and destination dtypes match|expected self and source to have same dtypes"
        r"|Expected self\.dtype to be equal to src\.dtype|query, key, and value to have the same dtype"
        r"|self and mat2 must have the same dtype|xpected object of scalar type (?:Half|Float|BFloat16"
        r"|Double) but got scalar type"
        r"|xpected tensor for argument #\d [^\n]{0,60} to have the same type as"
        r"|nput and parameter tensors are not the same dtype",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="one_cycle_division",
        title="OneCycle divides by zero",
        what="DeepSpeed's OneCycle divides by cycle_first_step_size. It is 0 if the steps were calculated from an "
        "empty or a very short data set, or from a number of epochs below 1. Releases before 0.5.5 also divide by "
        "decay_step_size after the cycle, which is 0 by default.",
        remedy='Set "cycle_first_step_size" to a positive number of steps; newer releases say so in a ValueError. In '
        'the function _get_decay_lr or _get_decay_mom: "decay_step_size" above 0, or a later release.',
        pattern=r"(?:in _initialize_cycle|in _get_scale_factor|self\.step_ratio =|in _get_decay_(?:lr"
        r"|mom))[\s\S]{0,600}ZeroDivisionError"
        r"|OneCycle[^\n]*ZeroDivisionError|ZeroDivisionError[^\n]*OneCycle",
    ),
    Signature(
        id="division_by_zero",
        title="a division by zero",
        what="With DeepSpeed most likely a number of steps that is 0: warmup_num_steps or total_num_steps of a "
        "scheduler, cycle_first_step_size of OneCycle, or a data set that is empty or has fewer batches than ranks * "
        "accumulation steps.",
        remedy="Set the steps of the config's scheduler (`python -m dsfix check CONFIG`); compare the number of "
        "batches.",
        pattern=r"ZeroDivisionError: (?:float |integer )?(?:division|modulo|floor division)",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="groups_of_scheduler",
        title="zip() with different lengths: a scheduler and its optimizer have different numbers of groups",
        what="Since torch 2.10 a scheduler's step compares the two. Most likely DeepSpeed removed a group without "
        "parameters from the optimizer after the scheduler was made, as LoRA with the Trainer's weight decay leaves "
        "one; older torch silently assigns the rates of other groups.",
        remedy="dsfix's patch empty_group_scheduler; or leave empty groups out before the scheduler is made, or "
        "transformers 5.1 or later.",
        pattern=r"zip\(\) argument 2 is (?:longer|shorter) than argument 1",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="recomputed_differently",
        title="CheckpointError: the recomputation differs from the forward pass",
        what="Gradient checkpointing compares saved with recomputed tensors. Most likely: ZeRO-3 with frozen "
        "parameters (LoRA), torch 2.5 or later and DeepSpeed before 0.19.3 (the next lines show the shape [0]); "
        "otherwise a cache (use_cache=True), autocast or random branches that differ between the passes.",
        remedy="The shape [0]: DeepSpeed 0.19.3 or later, or dsfix's patch zero3_checkpoint_recompute. "
        "use_cache=False; use_reentrant=True does not compare.",
        pattern=r"Recomputed values for the following tensors have different metadata"
        r"|A different number of tensors was saved during the original forward and recomputation",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="weights_not_contiguous",
        title="Tensors must be contiguous: a collective gets a view",
        what="In deepspeed.initialize most likely: it broadcasts the parameters of rank 0, and one of them is not "
        "contiguous (transposed or expanded weights, some loaders). Elsewhere: a tensor that the script gathers or "
        "reduces itself.",
        remedy="for p in model.parameters(): p.data = p.data.contiguous(), before deepspeed.initialize; "
        "x.contiguous().",
        pattern=r"Tensors must be contiguous",
        role=Role.POSSIBLE,
        evidence=("https://github.com/lean-dojo/ReProver/issues/72",),
    ),
    Signature(
        id="backward_outside_engine",
        title="loss.backward() instead of the engine's",
        what="DeepSpeed must scale the loss and reduce the gradients; since 0.18.3 it says so where the plain call "
        "would be wrong.",
        remedy="engine.backward(loss); or engine.scale(loss).backward() where the message offers it.",
        pattern=r"Loss scaling is required for this configuration, but backward"
        r"|Direct calls to tensor\.backward\(\) are not supported",
        role=Role.GENERAL,
        evidence=pull(7665),
    ),
    Signature(
        id="nothing_to_train",
        title="the optimizer has no parameters",
        what="No parameter of the model, or of a group, requires a gradient: everything is frozen (LoRA not applied, "
        "a reference or reward model that is prepared for training), or ZeRO-3 had emptied the parameters when the "
        "optimizer was made from their sizes.",
        remedy="Check [p for p in model.parameters() if p.requires_grad] before deepspeed.initialize; initialize "
        "models that are not trained without an optimizer (with ZeRO-3 only).",
        pattern=r"optimizer got an empty parameter list|ValueError: max\(\) arg is an empty sequence"
        r"|Unexpected that largest partition is empty",
        role=Role.POSSIBLE,
        evidence=("https://github.com/hiyouga/LlamaFactory/issues/2546",),
    ),
    Signature(
        id="zero_without_optimizer",
        title="ZeRO needs an optimizer, and the engine has none",
        what="ZeRO-1 and ZeRO-2 partition an optimizer; an engine for evaluation or a reference model has none. Only "
        "ZeRO-3 works without one.",
        remedy="A config without ZeRO (stage 0) or with ZeRO-3 for models that are not trained.",
        pattern=r"zero stage \d requires an optimizer|backward.{0,80} requires an? optimizer",
    ),
    Signature(
        id="graph_used_twice",
        title="a second backward pass through the same graph",
        what="The graph of the first backward pass is freed. Most likely a tensor with a graph is kept between steps "
        "(a loss that is added up, a hidden state), or two losses of one forward pass each get a backward pass.",
        remedy="Add the losses before one engine.backward; detach() what is kept between steps.",
        pattern=r"Trying to backward through the graph a second time",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="modified_inplace",
        title="a tensor that the backward pass needs was modified in place",
        what="Most likely an operation of the model ends in _ or assigns to a slice; with DeepSpeed also parameters "
        "that change between forward and backward: a step, a load or a generation in between, two forward passes of a "
        "shared module. A leaf Variable in deepspeed.initialize (_broadcast_model): a release before 0.13.3 with "
        "another backend than NCCL.",
        remedy="torch.autograd.set_detect_anomaly(True) names the operation; one step after all backward passes.",
        pattern=r"modified by an inplace operation|being used in an in-place operation"
        r"|is a view and is being modified inplace|has been modified inplace",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="marked_ready_twice",
        title="DistributedDataParallel: a parameter is ready twice",
        what="DDP, not DeepSpeed: most likely reentrant gradient checkpointing with shared or unused parameters.",
        remedy='gradient_checkpointing_kwargs={"use_reentrant": False}; ddp_find_unused_parameters=False.',
        pattern=r"Expected to mark a variable ready only once",
    ),
    Signature(
        id="moe_groups",
        title="the optimizer's groups do not mark the experts' parameters",
        what="With ZeRO, experts need groups of their own.",
        remedy="deepspeed.moe.utils.split_params_into_different_moe_groups_for_optimizer for the groups given to the "
        "optimizer.",
        pattern=r"None of the param groups are marked as MoE",
    ),
    Signature(
        id="pipeline_limits",
        title="not possible with pipeline parallelism",
        what="A PipelineModule trains by train_batch and eval_batch only, and with ZeRO-0 or ZeRO-1.",
        remedy='engine.train_batch(iterator) instead of forward, backward and step; "stage": 1.',
        pattern=r"Only train_batch\(\) is accessible in pipeline mode|incompatible with pipeline parallelism",
    ),
    Signature(
        id="precision_not_supported",
        title="this GPU, or this build of torch, does not support the precision",
        what="bf16 needs an NVIDIA GPU of the Ampere generation (A100, RTX 30) or newer; fp16 needs an accelerator. "
        "Otherwise torch sees no GPU: a build for the CPU, the driver, CUDA_VISIBLE_DEVICES.",
        remedy="fp16 instead of bf16 on V100, T4 and RTX 20, in the config and in the arguments.",
        pattern=r"Type (?:fp16|bf16) is not supported on your device|Your setup doesn't support bf16"
        r"|Bfloat16 is only supported on"
        r"|bf16 is not supported(?! by apex)",
    ),
    Signature(
        id="flash_attention_refuses",
        title="flash attention refuses the dtype of its inputs, or the GPU",
        what='"only support fp16 and bf16 data type": query, key or value are in fp32: the model was loaded in fp32, '
        'norms or adapters are kept in fp32, or fp16 and bf16 are off in the config. "only supports Ampere GPUs": the '
        "GPU is older (V100, T4).",
        remedy='torch_dtype=torch.bfloat16 in from_pretrained, and "bf16" (or "fp16") enabled in the config as in the '
        'arguments. An older GPU: attn_implementation="sdpa".',
        pattern=r"FlashAttention only supports?\b|Flash Attention only supports?\b",
        role=Role.GENERAL,
        evidence=("https://github.com/Dao-AILab/flash-attention/blob/v2.7.4/csrc/flash_attn/flash_api.cpp",),
    ),
    Signature(
        id="half_on_cpu",
        title="an operation has no half precision on the CPU",
        what="A module or a tensor in fp16 or bf16 is on the CPU: no GPU is used, the model was not moved, or an "
        "offloaded parameter is used outside its hooks.",
        remedy="Check that a GPU is visible and the model is on it; fp32 on the CPU.",
        pattern=r'(?<!cuda)(?<!cuda_impl)" not implemented for \'(?:Half|BFloat16)\'',
        role=Role.POSSIBLE,
    ),
    Signature(
        id="gradient_scaler",
        title="torch's gradient scaler does not fit the gradients",
        what='"unscale FP16 gradients": the weights are in fp16, and amp needs them in fp32. "No inf checks": a '
        "step without gradients. DeepSpeed scales the loss itself.",
        remedy="Load the model in fp32 for amp; with DeepSpeed no GradScaler, and fp16 in its config only.",
        pattern=r"Attempting to unscale FP16 gradients|No inf checks were recorded",
        role=Role.GENERAL,
    ),
    Signature(
        id="unused_parameters",
        title="DistributedDataParallel: parameters got no gradient in the last step",
        what="DDP, not DeepSpeed: some parameters are not used in each step (frozen parts, branches, MoE).",
        remedy="find_unused_parameters=True (ddp_find_unused_parameters in transformers), or freeze them.",
        pattern=r"Expected to have finished reduction in the prior iteration",
    ),
    Signature(
        id="optimizer_of_another_model",
        title="the optimizer has parameters that the model does not have",
        what="DeepSpeed looks up the names of the optimizer's parameters in the model that was passed. Most likely "
        "the optimizer is for several models (accelerator.prepare with two), or was created before the model was "
        "wrapped, copied or its parameters replaced.",
        remedy="One model per engine: a torch module that contains all of them, and an optimizer over its parameters, "
        "created last.",
        pattern=r"(?:KeyError|keyError|Key Error|keyerror) ?: Parameter containing"
        r"|failed to find optimizer param in named params",
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/6770",),
    ),
    Signature(
        id="pipeline_shapes_differ",
        title="a gradient has another shape than the output it is for",
        what="torch's message; with a pipeline most likely a micro-batch of another shape: PipelineEngine allocates "
        "what the stages send each other once, for the shapes of the first micro-batch. Sequences are padded to the "
        "batch only, or the last batch is smaller.",
        remedy="Pad to one length, drop_last=True. From 0.15.0 on PipelineModule(dynamic_shape=True) sends the shapes "
        "each time.",
        pattern=r"Mismatch in shape: grad_output\[\d+\] has a shape of",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/5696",),
    ),
    Signature(
        id="scheduler_fallback_increment",
        title="a scheduler's step() failed, and DeepSpeed's fallback for Megatron hides why",
        what="Through 0.10.0 the engine answers any TypeError of the scheduler's step by a call with increment, which "
        "only Megatron's scheduler knows. Most likely the first call got lr_kwargs that are for Megatron's.",
        remedy='The first error is above, at "During handling of the above exception". Megatron-DeepSpeed: its own '
        'scheduler, without a "scheduler" in the DeepSpeed config; DeepSpeed 0.10.1 or later.',
        pattern=r"step\(\) got an unexpected keyword argument 'increment'",
        affects={"deepspeed": "<0.10.1"},
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/4151",),
    ),
    Signature(
        id="broadcast_of_leaf_refused",
        title="deepspeed.initialize: the backend refuses to broadcast parameters that require gradients",
        what="Releases before 0.13.3 broadcast the parameters themselves instead of their data, which gloo, on "
        "Windows, does not take.",
        remedy="DeepSpeed 0.13.3 or later; or NCCL, on Linux or in WSL 2.",
        pattern=r"_broadcast_model[\s\S]*a leaf Variable that requires grad is being used in an in-place operation"
        r"|a leaf Variable that requires grad is being used in an in-place operation[\s\S]{0,2000}_broadcast_model",
        affects={"deepspeed": "<0.13.3"},
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/1121",),
    ),
    Signature(
        id="swapped_parameters",
        title="deepspeed.initialize: torch cannot swap the parameters of the model",
        what="0.19.7 refers weakly to each parameter by its name, and torch swaps no tensor that is referred to so: "
        "neither weights of a tensor subclass (quantized ones) nor any under set_swap_module_params_on_conversion.",
        remedy="DeepSpeed 0.19.6, or 0.19.8 and later.",
        pattern=r"Couldn't swap \w+\.\w+",
        affects={"deepspeed": "==0.19.7"},
    ),
)
