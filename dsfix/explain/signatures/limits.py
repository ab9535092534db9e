"""More checks of DeepSpeed's own: arguments, sizes and states that its engine, ZeRO, pipeline and offload ask for."""

from __future__ import annotations

from ..signature import Role, Signature

SIGNATURES = (
    Signature(
        id="initialize_without_model",
        title="deepspeed.initialize got no model",
        what="model= is None: most likely the function that builds it returned nothing, or the arguments are given by "
        "position in another order.",
        remedy="deepspeed.initialize(model=model, model_parameters=…, config=…).",
        pattern=r"deepspeed\.initialize requires a model",
    ),
    Signature(
        id="pipeline_with_mpu",
        title="a PipelineModule has its own groups, and mpu= must not be given",
        what="deepspeed.initialize takes an mpu for other models only.",
        remedy="Leave mpu out, and give the topology to PipelineModule(topology=…).",
        pattern=r"mpu must be None with pipeline parallelism",
    ),
    Signature(
        id="universal_sizes_differ",
        title="a universal checkpoint does not have the sizes of this model",
        what="Most likely another model or vocabulary (its padding depends on the tensor-parallel degree), another "
        "tensor-parallel degree without patterns that say how weights are split, or a checkpoint whose padding was not "
        "removed.",
        remedy="The model as it was saved; universal_checkpoint_info with the model's patterns for tensor parallelism; "
        "a current DeepSpeed for the conversion and for loading.",
        pattern=r"Load checkpoint \S+ dst(?:_tensor)? numel|full param numel \d+ != tensor slice numel"
        r"|Vocab tensor padded size \d+ < loaded universal size|(?<!Warning: )Unused patterns="
        r"|Got more than one matching patterns=",
    ),
    Signature(
        id="steps_of_partitions_differ",
        title="the partitions of a checkpoint are not of one step",
        what="Most likely files of two checkpoints are in one directory, or a rank did not finish saving. Otherwise "
        "groups of parameters that were not stepped equally often.",
        remedy="A checkpoint whose files are all of one time; check the disk of each host.",
        pattern=r"All shards must have the same step value|All param groups must have the same step value"
        r"|State dicts of all partitions must have the same step value",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="expert_file_missing",
        title="MoE: the checkpoint has no file of an expert",
        what="Each expert is saved in a file layer_N_expert_N_mp_rank_…. Most likely the model has more experts or "
        "other MoE layers than the one that was saved, or the files of other hosts are missing.",
        remedy="The same experts and layers as at saving; copy the files of all hosts into one directory.",
        pattern=r"Expert checkpoint file not found|(?:No such file|does not exist"
        r"|not found)[^\n]{0,200}layer_\d+_expert_\d+"
        r"_mp_rank",
    ),
    Signature(
        id="fused_optimizer_limits",
        title="DeepSpeed's fused or 1-bit optimizer does not support this",
        what="The message names it: sparse gradients (an embedding with sparse=True), amsgrad, a dtype, or arguments "
        "of an old interface.",
        remedy='torch.optim.AdamW ("torch_adam": true in the optimizer\'s params), or without that option.',
        pattern=r"(?:FusedAdam|FusedLamb|FusedLion|1-bit Adam|1-bit Lamb|0/1 Adam) (?:does not support|only support"
        r"|has been updated)",
    ),
    Signature(
        id="onebit_backend",
        title="1-bit optimizer: its communication backend is not available",
        what='"comm_backend_name" is "nccl", which needs torch 1.8 and CuPy of the CUDA version, or "mpi", which needs '
        "mpi4py and an MPI that knows CUDA.",
        remedy='"comm_backend_name": "nccl", and pip install cupy-cuda12x (or 11x).',
        pattern=r"to enable NCCL backend in (?:1-bit|0/1)",
    ),
    Signature(
        id="partitioned_activations_needed",
        title="activation checkpointing: this option needs partition_activations",
        what="contiguous_memory_optimization works on partitioned activations, of a known number of layers.",
        remedy='"partition_activations": true and "number_checkpoints": N in activation_checkpointing.',
        pattern=r"avail(?:a)?ble with partitioned activations|Must specify the number of layers with contiguous memory",
    ),
    Signature(
        id="rng_state_not_added",
        title="cuda rng state model-parallel-rng is not added",
        what="DeepSpeed's (or Megatron's) activation checkpointing keeps a random state of its own for model-parallel "
        "regions, and it has not been seeded in this process.",
        remedy="deepspeed.checkpointing.model_parallel_cuda_manual_seed(seed) (Megatron: "
        "tensor_parallel.model_parallel_cuda_manual_seed) on each rank before the model is built; call it once only.",
        pattern=r"cuda rng state \S+ is not added|cuda rng state \S+ already exists",
    ),
    Signature(
        id="checkpointed_tensors",
        title="DeepSpeed's activation checkpointing does not take this",
        what="deepspeed.checkpointing.checkpoint takes and returns tensors and tuples of them, for backward() only, "
        "not for torch.autograd.grad.",
        remedy="Tensors as positional arguments; torch.utils.checkpoint with use_reentrant=False for anything else.",
        pattern=r"Only tuple of tensors is supported\. Got Unsupported input type|Checkpointing is not compatible with "
        r"\.grad\(\)|calling backwards on a tensor that is never exposed",
    ),
    Signature(
        id="parameter_without_gradient",
        title="a parameter got no gradient in the backward pass",
        what="A part of the model took no part in the loss on this rank: a branch that was not run, a modality that "
        "was not in the batch, a module whose output is not used.",
        remedy="Run it on every rank, with its output multiplied by 0 if there is nothing to do; requires_grad_(False) "
        "for what is never trained.",
        pattern=r"high precision param has no gradient|Invalid to reduce Param \d+ with None gradient",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="first_tensor_of_partition",
        title="ZeRO-1/2: gradients do not fill their partition",
        what="The gradients that were reduced do not fit the parts of the flat weights. Most likely parameters were "
        "frozen, added or replaced after deepspeed.initialize, or a backward pass was repeated or interrupted.",
        remedy="Freeze and change the model before deepspeed.initialize; one engine.backward and one engine.step per "
        "micro-batch; ZeRO-3 or stage 0 tells whether it is of this stage.",
        pattern=r"This can happen either zero or only once as this must be the first tensor"
        r"|averaged gradients have different number of elements that partition",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="zero_needs_half",
        title="ZeRO is only supported if fp16 is enabled: an old DeepSpeed",
        what="Releases of 2020 and 2021 have ZeRO for fp16 only.",
        remedy='A current DeepSpeed; or "fp16": {"enabled": true}.',
        pattern=r"ZeRO is only supported if fp16 is enabled",
        affects={"deepspeed": "<0.12.0"},
    ),
    Signature(
        id="half_master_weights",
        title="fp16 or bf16 master weights: a setting that they do not go with",
        what="fp16_master_weights_and_grads and bf16_master_weights_and_grads need a ZeRO stage and, with offload, "
        "DeepSpeedCPUAdam made for them; they exclude each other.",
        remedy="Leave the option out, or follow the message: stage 2 or 3, offload_optimizer, DeepSpeedCPUAdam.",
        pattern=r"16_master_weights_and_grad(?:ient)?s\b[^\n]{0,120}(?:only supported|requires?|mutually exclusive)"
        r"|(?:fp16_master_and_gradients|bf16_optimizer_states)[^\n]{0,60}requires|Master weights feature requires",
    ),
    Signature(
        id="dynamic_scale_required",
        title="this optimizer requires dynamic loss scaling",
        what="The fp16 optimizer for it has no static loss scale.",
        remedy='"loss_scale": 0 in the section fp16.',
        pattern=r"optimizer requires dynamic loss scaling",
    ),
    Signature(
        id="reduction_dtype",
        title="ZeRO: communication_data_type does not go with reduce_scatter",
        what="ZeRO's reduce-scatter takes few dtypes; the message lists them.",
        remedy='Remove "communication_data_type", or "reduce_scatter": false in zero_optimization.',
        pattern=r"communication_data_type with reduce scatter enabled",
    ),
    Signature(
        id="old_zero1_checkpoint",
        title="a checkpoint of ZeRO-1 from before DeepSpeed 0.5.9",
        what="Its format was dropped with the old implementation of stage 1.",
        remedy="Load and save it with a DeepSpeed below 0.5.9, weights only; then use a current one.",
        pattern=r"deprecated version of ZeRO Stage 1 is not supported",
    ),
    Signature(
        id="apex_missing",
        title="the config's \"amp\" needs NVIDIA's apex, which is not installed",
        what="The section amp is apex's mixed precision, which is not developed any more.",
        remedy='"bf16" or "fp16" instead of "amp"; otherwise build apex from source (pip\'s apex is another package).',
        pattern=r"Unable to import apex/amp|No module named '?apex\b|apex(?:\.amp)? (?:is )?not installed"
        r"|module 'apex' has no attribute 'amp'|cannot import name 'amp' from 'apex'"
        r"|enable both amp with \(legacy\) fp16",
    ),
    Signature(
        id="stage3_only",
        title="this function is for ZeRO-3, and the engine has another stage",
        what="Weights are gathered for saving where they are partitioned; with ZeRO-0 to 2 each rank has them whole.",
        remedy="torch.save(engine.module.state_dict(), …) or save_pretrained on rank 0.",
        pattern=r"this function requires ZeRO-3 mode|16bit_state_dict is only applicable to cases where weights are"
        r"|This API is only defined for ZeRO-3 partitioned",
    ),
    Signature(
        id="scheduler_numbers",
        title="DeepSpeed's scheduler refuses one of its numbers",
        what="Steps must be positive, and lists have one value per parameter group of the optimizer.",
        remedy="Correct it in scheduler.params: `python -m dsfix check CONFIG`.",
        pattern=r"(?:cycle_first_step_size|cycle_second_step_size|lr_range_test_step_size|warmup_num_steps) must be "
        r"|expected \d+ (?:lr_range_test_min_lr|values? for \S+), got"
        r"|Total number of training steps \S+ (?:should|must) be",
    ),
    Signature(
        id="pipeline_data",
        title="the pipeline engine needs a data iterator on the first and the last stage",
        what="train_batch(iterator) reads inputs on the first stage and labels on the last one.",
        remedy="deepspeed.initialize(training_data=…), or engine.train_batch(data_iter=…) on all ranks.",
        pattern=r"no data iterator provided",
    ),
    Signature(
        id="pipeline_layers_not_fitting",
        title="a PipelineModule is made of something that does not fit",
        what="Layers are modules, LayerSpecs of modules or functions; each takes and returns a tensor or a tuple of "
        "tensors, of the same shapes in each micro-batch; num_stages or a topology is needed.",
        remedy="Return a tuple of tensors from each layer (no dict, no None, no bool); num_stages=…; pad to one "
        "length.",
        pattern=r"expecting a tensor or a tuple of tensors|must provide num_stages or topology|LayerSpec only supports "
        r"torch\.nn\.Module|Buffer for metadata is too small|Could not handle meta type",
    ),
    Signature(
        id="moe_needs_buckets",
        title="MoE with ZeRO-2 needs contiguous_gradients and reduce_scatter",
        what="Experts are reduced by that code only.",
        remedy='"contiguous_gradients": true and "reduce_scatter": true in zero_optimization, which are the defaults.',
        pattern=r"in ZeRO Stage 2 must be set to True for MoE",
    ),
    Signature(
        id="moe_groups_of_mpu",
        title="MoE: the process groups of experts were not made",
        what="The parameters are experts', and the engine has no groups for them: no deepspeed.moe.layer.MoE in the "
        "model that was initialized, or a model-parallel unit without expert groups.",
        remedy="Experts by deepspeed.moe.layer.MoE, within the model given to deepspeed.initialize; releases of "
        "Megatron-DeepSpeed and DeepSpeed that fit each other.",
        pattern=r"Expert (?:data )?parallel group should be configured with MoE"
        r"|attempting to reduce grads in unsupported "
        r"way w\.r\.t\. MoE",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="groups_api_removed",
        title="deepspeed.utils.groups.initialize() was removed",
        what="Groups of experts are made by the MoE layer since 0.6.",
        remedy="Remove the call, and give ep_size to deepspeed.moe.layer.MoE.",
        pattern=r"do not use the groups\.initialize\(\) API",
    ),
    Signature(
        id="parallel_group_missing",
        title="a parallel group is asked for before it is initialized",
        what="Megatron's (or DeepSpeed's) groups of model, data or tensor parallelism do not exist yet in this "
        "process, or another copy of the module made them.",
        remedy="initialize_model_parallel (Megatron: initialize_megatron) after torch.distributed is initialized and "
        "before the model is made; releases of Megatron-DeepSpeed and DeepSpeed that fit each other.",
        pattern=r"(?:intra_layer_model|tensor model|(?<!expert )[Mm]odel|(?<!expert )data|tensor|pipeline_model"
        r"|pipeline "
        r"model) parallel group is not initialized",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="nvme_swapper_missing",
        title="parameters on NVMe, but the model was not partitioned with that config",
        what="The swapper of parameters is made by deepspeed.zero.Init with a config whose offload_param is nvme. The "
        "model was built outside of it, or with another config.",
        remedy="with deepspeed.zero.Init(config_dict_or_path=CONFIG): model = …; or no offload_param on NVMe.",
        pattern=r"'NoneType' object has no attribute '(?:available_swap_in_buffers|swap_into_buffer"
        r"|swap_out_and_release"
        r"|reserve_available_buffers|synchronize_reads|swappable_tensor|swap_in|remove_partition_and_release_buffers)'",
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/1035",),
    ),
    Signature(
        id="offload_config_incomplete",
        title="offload: the config lacks what the device needs",
        what="zero.Init's remote device must be the device of offload_param, and NVMe needs a path; parameters can "
        "only be offloaded together with ZeRO-3, in old releases only with the optimizer.",
        remedy='"offload_param": {"device": "nvme", "nvme_path": "/local/disk"}; the same config for zero.Init and '
        "deepspeed.initialize.",
        pattern=r"in DeepSpeed Config cannot be \S+ if remote device is|must be defined in DeepSpeed Config if remote"
        r"|[Pp]artial offloading only supported for ZeRO Stage 3|parameter offload is only available with optimizer",
    ),
    Signature(
        id="nvme_parameter_not_swappable",
        title="NVMe offload: a tensor does not fit the files or buffers of the swapping",
        what="Most likely a part of a parameter is smaller or larger than the buffers (many ranks, tiny layers, an "
        "embedding), or files of an earlier job are in nvme_path.",
        remedy='A larger "buffer_size" in offload_param and offload_optimizer; delete zero_stage_3 in nvme_path; '
        "offload to the CPU instead.",
        pattern=r"of numel=\d+ is not swappable|numel of fp16 buffers \d+ is too small"
        r"|Path for param id \d+ does not exist"
        r"|param \d+ has not been assigned a swap buffer|Missing buffer id for releasing",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="changed_inside_gathered",
        title="a gathered ZeRO-3 parameter is changed without modifier_rank",
        what="GatheredParameters throws changes away unless it is told which rank's values count.",
        remedy="with deepspeed.zero.GatheredParameters(params, modifier_rank=0): change it on rank 0.",
        pattern=r"in-place modification of ZeRO-3 parameters inside GatheredParameters",
    ),
    Signature(
        id="parameter_active_in_modules",
        title="ZeRO-3: a parameter is freed while modules still use it",
        what="Most likely code leaves GatheredParameters while a forward or backward pass of the same parameters runs, "
        "or changes the model in a hook.",
        remedy="Gather outside of forward and backward passes only; do not add or replace parameters after "
        "deepspeed.initialize.",
        pattern=r"Cannot free a ZeRO-3 parameter while it is still active"
        r"|Nested GatheredParameters contexts cannot overlap",
    ),
    Signature(
        id="parameters_overwritten",
        title="ZeRO-3: parameters were replaced after they were partitioned",
        what="A module has parameters that zero.Init does not know: they were assigned after it had partitioned the "
        "module (loading, tying or casting weights in __init__, an adapter).",
        remedy="Replace the data within deepspeed.zero.GatheredParameters(…, modifier_rank=0), not the parameter; or "
        "build the model without zero.Init.",
        pattern=r"were zero params, is it possible that the parameters were overwritten",
    ),
    Signature(
        id="leaf_module_without_gradient",
        title="ZeRO-3: a leaf module whose inputs need no gradient",
        what="set_z3_leaf_modules gathers the parameters for the backward pass when the gradient of the module's input "
        "is due. Frozen layers in front of it (LoRA, an embedding) leave it without.",
        remedy="model.enable_input_require_grads(), or a leaf module further back.",
        pattern=r"cannot be set as a leaf module when it does not have any input tensors that require",
    ),
    Signature(
        id="optimizer_of_offload",
        title="this kind of offload works with one optimizer of DeepSpeed only",
        what="A ratio below 1 (offload_optimizer.ratio) needs DeepSpeedCPUAdam; offloading FusedAdam's states needs "
        "FusedAdam.",
        remedy='Name Adam or AdamW in the config\'s "optimizer", without an optimizer of your own; or "ratio": 1.0.',
        pattern=r"Hybrid Optimizer Only Supports DeepSpeedCPUAdam|Offloading is supported only for DeepSpeed FusedAdam",
    ),
    Signature(
        id="gradient_of_another_size",
        title="ZeRO-3: a gradient does not have the size of its parameter",
        what="Most likely the parameter's data was replaced (resized embeddings, a tied weight) after it was "
        "partitioned, or a quantized or tensor-parallel weight is used as an ordinary one.",
        remedy="Resize and tie before deepspeed.initialize, under deepspeed.zero.GatheredParameters; ZeRO-2.",
        pattern=r"Cannot reduce scatter gradients whose size is not same|should match the size of param\.ds_tensor"
        r"|aligned size \d+ does not match tensor size",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="numactl_forbidden",
        title="numactl may not bind memory in this container",
        what="--bind_cores_to_rank starts the ranks with numactl, whose system call (set_mempolicy) Docker forbids by "
        "default.",
        remedy="Leave --bind_cores_to_rank out; or docker run --cap-add SYS_NICE (or --security-opt "
        "seccomp=unconfined).",
        pattern=r"set_mempolicy: Operation not permitted|(?:container|docker|Docker)[^\n]{0,160}because of numactl"
        r"|numactl[^\n]{0,80}Operation not permitted",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/4971",),
    ),
    Signature(
        id="numactl_settings",
        title="bind_cores_to_rank: numactl cannot bind the ranks as asked",
        what="KMP_AFFINITY of the environment contradicts numactl, there are fewer cores than ranks, or the list of "
        "cores is not written as ascending ranges.",
        remedy="unset KMP_AFFINITY; fewer ranks or no --bind_cores_to_rank; --bind_core_list 0-27,32-59.",
        pattern=r"KMP_AFFINITY conflicts with numactl|At least one core needs to be assigned to each rank|Bad range: '",
    ),
    Signature(
        id="tensor_parallel_checkpoint_count",
        title="loading a tensor-parallel checkpoint: its number of files does not fit the ranks",
        what="Files are merged or split only if one number divides the other, and the list must be complete.",
        remedy="All files of the checkpoint; a number of ranks that divides it, or is a multiple of it.",
        pattern=r"checkpoint count \d+ is different from saved mp_world_size|Invalid checkpoints and world size for sd",
    ),
    Signature(
        id="tp_settings_contradict",
        title="tensor parallelism: the config and tp_model_init contradict each other, or a layer cannot be split so",
        what="The message names the setting: sizes, groups and dtypes must be the same in both; a custom partition "
        "must fit the weight's shape.",
        remedy="Give them in one place only; check the shape of the layer that the message names.",
        pattern=r"Conflicting (?:tensor_parallel\.|dtype: config uses|tp_model_init)"
        r"|tensor_parallel\.tp\.tp_size \(\d+\) does "
        r"not match|AutoTP shape |AutoTP nested |AutoTP partition_dim |AutoTP layer |tp_model_init (?:provided"
        r"|tp_size)",
    ),
    Signature(
        id="autoep_refuses",
        title="AutoEP (expert_parallel in the config) refuses this model, setting or checkpoint",
        what="The message names it: the model's class, a preset, numbers of experts and ranks that do not divide each "
        "other, or a checkpoint that was saved with others.",
        remedy='Correct it; a preset_model for this model; or "expert_parallel" off.',
        pattern=r"AutoEP preset|(?<!but no )AutoEP metadata|AutoEP layer metadata|(?<!Consolidating )AutoEP ZeRO-3"
        r"|AutoEP expert|AutoEP detection"
        r"|AutoEP source"
        r"|AutoEP\+AutoTP|AutoEP consolidated|(?<!does not contain )ds_autoep_layers"
        r"|expert_parallel\.\w+[^\n]{0,80}(?: must be | must divide | not supported | is reserved )",
    ),
    Signature(
        id="transformer_kernel_batch",
        title="DeepSpeed's transformer kernel: the batch is larger than it was made for",
        what="The layer allocates for the batch_size of its config once.",
        remedy="The largest micro-batch in DeepSpeedTransformerConfig; drop_last=True.",
        pattern=r"(?:Input|grad_output) batch size exceeds the limit",
    ),
    Signature(
        id="states_not_movable",
        title="engine.offload_states(): these states cannot be moved",
        what="It moves ZeRO-3's states that are on the GPU; what offload_optimizer or offload_param have on the CPU or "
        "on NVMe is there already, and an engine without an optimizer has none.",
        remedy="No offload in the config together with offload_states, or leave the call out.",
        pattern=r"Moving (?:states|buffers) across devices is (?:not supported (?:for offloaded optimizer|without)"
        r"|supported"
        r" only for ZeRO)|NVMe offload is not supported for offloading states|Moving buffers back is supported only",
    ),
    Signature(
        id="deepcompile_limits",
        title="DeepCompile does not support this setting",
        what="It needs an optimizer, ZeRO-1 or ZeRO-3, the backend inductor or eager, and a torch that the release "
        "knows.",
        remedy='"deepcompile": false; or the release that supports it.',
        pattern=r"DeepCompile (?:is not supported|supports stage|with ZeRO stage 3 is not)"
        r"|is not supported for DeepCompile",
    ),
)
