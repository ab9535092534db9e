"""What DeepSpeed refuses with a message of its own: a setting, a call or an environment that does not fit."""

from __future__ import annotations

from ..signature import Role, Signature

SIGNATURES = (
    Signature(
        id="pipeline_stages_and_ranks",
        title="the number of pipeline stages does not divide the number of ranks",
        what="Each stage gets the same number of ranks.",
        remedy="A num_stages that divides the number of processes, or other processes: deepspeed --num_gpus.",
        pattern=r"num_stages \(\d+\) must divide distributed world size",
    ),
    Signature(
        id="pipeline_training_without_gradients",
        title="train_batch() within torch.no_grad",
        what="The pipeline engine trains in train_batch() and evaluates in eval_batch().",
        remedy="engine.eval_batch(iterator) for evaluation; otherwise no torch.no_grad or inference_mode around it.",
        pattern=r"train_batch\(\) requires gradients enabled",
    ),
    Signature(
        id="pipeline_bf16_stage",
        title="a pipeline in bf16 works with ZeRO-1 only",
        what="The bf16 optimizer of the pipeline engine is made for stage 1.",
        remedy='"zero_optimization": {"stage": 1}, or fp16.',
        pattern=r"PP\+BF16 only work for ZeRO Stage 1",
    ),
    Signature(
        id="pipeline_layers_not_found",
        title="PipelineModule: no layer has the type to partition by",
        what='partition_method "type:REGEX" counts layers whose class name matches the expression, without case.',
        remedy='An expression that matches the class names of the layers, or "parameters" or "uniform".',
        pattern=r"Partitioning '[^'\n]*' found no valid layers to partition",
    ),
    Signature(
        id="moe_batch_too_small",
        title="MoE: fewer tokens than min_capacity",
        what="Each expert reserves min_capacity places, 4 by default, and the batch has fewer tokens.",
        remedy="MoE(…, min_capacity=0), or a larger batch.",
        pattern=r"No\. of tokens \(batch-size\) should be greater than min_capacity",
    ),
    Signature(
        id="moe_group_mixed",
        title="MoE: a parameter group mixes experts and other parameters",
        what='A group with "moe": True may have only parameters of experts, which are reduced over fewer ranks.',
        remedy="deepspeed.moe.utils.split_params_into_different_moe_groups_for_optimizer(groups) makes the groups.",
        pattern=r"All params in MoE group must be MoE params",
    ),
    Signature(
        id="moe_top_k",
        title="MoE: this release has gates for k of 1 and 2 only",
        what="Gates for more experts per token came with 0.15.0.",
        remedy="DeepSpeed 0.15.0 or later, or k=2.",
        pattern=r"Only top-1 and top-2 gatings are supported",
        affects={"deepspeed": "<0.15.0"},
    ),
    Signature(
        id="operators_of_another_torch",
        title="precompiled operators are for another torch or CUDA than the one that runs",
        what="DeepSpeed was installed with DS_BUILD_OPS or DS_BUILD_<operator>, and torch was replaced afterwards.",
        remedy="Reinstall DeepSpeed with the torch that runs (pip install --no-cache-dir --force-reinstall --no-deps "
        "--no-build-isolation deepspeed), or without DS_BUILD_OPS: operators are then compiled on first use.",
        pattern=r"(?:PyTorch|CUDA|HIP) version mismatch! DeepSpeed ops were compiled",
    ),
    Signature(
        id="operator_needs_newer_gpu",
        title="an operator cannot run on this GPU",
        what="The operator requires a newer compute capability than all GPUs that are visible, or than all that "
        "TORCH_CUDA_ARCH_LIST names.",
        remedy="Leave out what needs it (the message names it), or let TORCH_CUDA_ARCH_LIST name the GPU's capability.",
        pattern=r"due to no compute capabilities remaining after filtering",
    ),
    Signature(
        id="operator_without_visible_gpu",
        title="an operator is compiled where no GPU is visible",
        what="The compiler must know the GPU's compute capability: no GPU is visible here, or the process was forked "
        "after CUDA was initialized.",
        remedy="TORCH_CUDA_ARCH_LIST=8.0 (the GPU's capability), or a machine or CUDA_VISIBLE_DEVICES with a GPU.",
        pattern=r"found no CUDA devices\. Set TORCH_CUDA_ARCH_LIST|cannot probe CUDA device capabilities in a forked",
    ),
    Signature(
        id="launcher_cannot_select",
        title="deepspeed launcher: this --launcher does not select hosts or GPUs",
        what="--num_nodes, --num_gpus, --include and --exclude are for pdsh; MPI and Slurm have their own.",
        remedy="Remove them, and select in the hostfile or in the scheduler's options; or --launcher pdsh.",
        pattern=r"backend does not support (?:limiting num nodes/gpus|worker include/exclusion)",
    ),
    Signature(
        id="launcher_node_rank",
        title="deepspeed --no_ssh without --node_rank",
        what="Without ssh the command is started on each host, and each needs its number.",
        remedy="--node_rank 0 on the host of --master_addr, 1 and so on on the others.",
        pattern=r"Launching training without ssh, but --node_rank is not set",
    ),
    Signature(
        id="config_type",
        title="deepspeed.initialize: the config is neither a path nor a dictionary",
        what="Most likely None (the option was not given), or an object of a framework.",
        remedy="config= a dictionary or the path of a JSON file.",
        pattern=r"'config' argument expected string or dictionary, got",
    ),
    Signature(
        id="parameters_unused_stage2",
        title="ZeRO-2: parameters without gradients",
        what="ignore_unused_parameters is false, and a parameter took no part in the loss: a branch that was not run, "
        "or a module whose output is not used.",
        remedy='"ignore_unused_parameters": true in zero_optimization, which is the default; or requires_grad_(False) '
        "for what is not trained.",
        # DistributedDataParallel says "This error"
        pattern=r"assert indicates that your module has parameters that|enable ignore_unused_parameters option in",
    ),
    Signature(
        id="precision_without_accelerator",
        title="fp16 or bf16, but DeepSpeed sees no accelerator",
        what="Most likely torch is a build for the CPU, the driver does not fit it, or the container or "
        "CUDA_VISIBLE_DEVICES shows no GPU.",
        remedy='python -c "import torch; print(torch.version.cuda, torch.cuda.is_available())" tells; `python -m dsfix '
        "doctor` examines it.",
        pattern=r"Cannot use \S+ without accelerator|Accelerator is not detected, cannot perform low precision",
    ),
    Signature(
        id="gradients_not_available",
        title="safe_get_full_grad outside of backward and step",
        what="The engine's gradients exist between engine.backward() and engine.step() only.",
        remedy="Read them there; in a Trainer in a callback that runs before the optimizer's step.",
        pattern=r"Gradients are only available immediately after backward and before engine step",
    ),
    Signature(
        id="leaf_modules_not_found",
        title="set_z3_leaf_modules: the model has no module of that class",
        what="Most likely the class of another release, or one imported a second time by trust_remote_code.",
        remedy="The class of the module itself: type(model.model.layers[0].mlp).",
        pattern=r"No modules (?:of type|named|matching suffixes) [^\n]* found in model",
        role=Role.GENERAL,
    ),
    Signature(
        id="training_data_type",
        title="deepspeed.initialize(training_data=…) is not a torch Dataset",
        what="DeepSpeed makes the DataLoader itself and takes a map-style torch.utils.data.Dataset.",
        remedy="Pass the data set, not a DataLoader; for anything else leave training_data out and iterate over a "
        "loader with a DistributedSampler.",
        pattern=r"Training data must be a torch Dataset",
    ),
)
