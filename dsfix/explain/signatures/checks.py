"""Checks of DeepSpeed itself, whose messages say what is wrong: what is behind them, and what helps."""

from __future__ import annotations

from ..signature import Role, Signature

SIGNATURES = (
    Signature(
        id="config_given_twice",
        title="DeepSpeed gets its config twice",
        what="args.deepspeed_config (or --deepspeed_config) and deepspeed.initialize(config=…) both have one.",
        remedy="Give one of them: leave args out of deepspeed.initialize, or set args.deepspeed_config = None.",
        pattern=r"Not sure how to proceed, we were given",
        evidence=("https://github.com/bigscience-workshop/Megatron-DeepSpeed/issues/386",),
    ),
    Signature(
        id="config_numbers",
        title="DeepSpeed's config has a number or a key that it refuses",
        what="The message names it: sizes must be positive, keys may not occur twice, an old name may not stand "
        "beside the new one.",
        remedy="Correct it; `python -m dsfix check CONFIG` finds these and other mistakes.",
        pattern=r"Train batch size: \S+ has to be greater|Micro batch size per gpu: \S+ has to be"
        r"|Gradient accumulation steps: \S+ has "
        r"to be|Duplicate keys in DeepSpeed config|Cannot provide deprecated parameter"
        r"|DeepSpeedConfig: \w+ is not defined"
        r"|DeepSpeedConfig: Maximum supported ZeRO stage|Train batch size must be divisible by micro-batch",
    ),
    Signature(
        id="parameters_of_another_dtype",
        title="the parameters do not have the dtype that the config asks for",
        what="With ZeRO-3, DeepSpeed through 0.8.1 refuses a model that zero.Init made in fp32 while the config has "
        "fp16; through 0.6.6 also one in fp32 with bf16, and without both any model that is not in fp32.",
        remedy="Enable in the config what the model was loaded with, and give zero.Init the same config; or load the "
        "model in the dtype of the config.",
        affects={"deepspeed": "<0.8.2"},
        pattern=r"Model must initialized in fp16 mode|is enabled but the following parameters have dtype"
        r"|fp16 is not enabled but one or several model parameters",
    ),
    Signature(
        id="loss_not_scalar",
        title="engine.backward gets something that is not a loss",
        what="It takes a scalar tensor with a gradient. Most likely the model returns a tuple or one loss per token or "
        "sample, or the loss was detached (item(), no_grad, all parameters frozen).",
        remedy="engine.backward(outputs.loss), or loss.mean(); for other tensors tensor.backward(gradient).",
        pattern=r"loss must be a scalar tensor|grad can be implicitly created only for scalar outputs"
        r"|backward\(\) only accepts a scalar tensor",
    ),
    Signature(
        id="lr_before_first_step",
        title="the learning rate is read before the scheduler's first step",
        what="A scheduler of DeepSpeed has no last learning rate until it stepped; with fp16 it does not step while "
        "the first steps are skipped because of an overflow.",
        remedy="Read it after the first step that was not skipped, or from optimizer.param_groups[0]['lr'].",
        pattern=r"need to call step\(\) first",
    ),
    Signature(
        id="batches_differ_in_tp_group",
        title="the ranks of a tensor-parallel group get different batches",
        what="With AutoTP training the ranks of one group work on the same batch; DeepSpeed compares them.",
        remedy="A sampler by data-parallel rank (number of ranks divided by autotp_size), with the same seed on the "
        "ranks of a group.",
        pattern=r"Data inconsistency within the TP group",
    ),
    Signature(
        id="max_grad_norm_in_config",
        title="max_grad_norm is not a parameter of the optimizer",
        what="DeepSpeed clips gradients itself and refuses max_grad_norm in optimizer.params.",
        remedy='"gradient_clipping": 1.0 at the top level of the config instead.',
        pattern=r"'max_grad_norm' is not supported as an optimizer parameter",
    ),
    Signature(
        id="optimizer_not_accepted",
        title="DeepSpeed does not accept the optimizer, or has none",
        what="initialize takes an optimizer of torch or a function that makes one, or the config names it; a "
        "scheduler needs one that exists. backward and step need it.",
        remedy="Pass the optimizer to deepspeed.initialize, or name it in the config with model_parameters; an engine "
        "that only evaluates calls neither backward nor step.",
        pattern=r"Client Optimizer is of unexpected type|Client Optimizer \(type = "
        r"|is not a supported DeepSpeed Optimizer"
        r"|must provide optimizer during init in order to use",
    ),
    Signature(
        id="parameter_in_two_groups",
        title="a parameter is in the optimizer's groups more than once",
        what="Most likely tied weights (an embedding and the output layer), or groups that overlap.",
        remedy="Make each group from parameters that are in no other one; model.parameters() yields shared ones once.",
        pattern=r"occurs multiple times in optimizer\.param_groups"
        r"|some parameters appear in more than one parameter group",
    ),
    Signature(
        id="combination_not_supported",
        title="DeepSpeed does not support this combination of features",
        what="The message names them. Some combinations work in newer releases.",
        remedy="Another ZeRO stage, another optimizer, or without the feature; the release notes of newer releases.",
        pattern=r"(?:Adam|Lamb|Muon optimizer|ZeRO) (?:is|are) not (?:yet |currently )?compatible"
        r"|MoE(?: is)? not supported with (?:ZeRO )?"
        r"Stage 3|the compatibility between 'autotp' and|not yet supported with ZeRO-3"
        r"|is only supported with ZeRO Stage"
        r"|is (?:only )?supported (?:only )?for ZeRO stage|is not currently supported with (?:model"
        r"|pipeline) parallelism"
        r"|is not supported with non-scalar backward|only supported for ZeRO Stage",
        role=Role.GENERAL,
    ),
    Signature(
        id="said_not_to_go_together",
        title="something is said not to go together with DeepSpeed",
        what="Most likely DeepSpeed or a framework refuses a combination of features (a ZeRO stage, an optimizer, "
        "quantization, another kind of parallelism), which newer releases may allow. Otherwise the installed releases "
        "of two packages do not fit each other.",
        remedy="Another ZeRO stage, or without the feature; current releases of both.",
        pattern=r"[Dd]eep[Ss]peed(?: (?!v?\d)\S+){0,4} is not compatible with"
        r"(?! the latest| latest| torch| PyTorch)|incompatible with [Dd]eep[Ss]peed"
        r"|not compatible with [Dd]eep[Ss]peed|[Dd]eep[Ss]peed(?: \S+){0,4} is incompatible with",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="slot_not_on_host",
        title="deepspeed launcher: a GPU is asked for that the host does not have",
        what="Without a hostfile the slots are 0 to n-1, for the n GPUs that torch sees. Most likely "
        "CUDA_VISIBLE_DEVICES is set by hand to other numbers, which the launcher takes as --include localhost:…: in "
        "a job of SLURM or in a container the GPUs are numbered from 0, whatever nvidia-smi shows outside. Otherwise "
        "--include names a slot that the hostfile does not have.",
        remedy="Unset CUDA_VISIBLE_DEVICES, and --num_gpus N or --include localhost:0,1; or torchrun. With a hostfile: "
        "more slots in it.",
        pattern=r"[Nn]o slot '?\d+'? specifi(?:ci)?ed on (?:local )?host",
        role=Role.GENERAL,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/7155",),
    ),
    Signature(
        id="resources_of_launcher",
        title="the deepspeed launcher does not find the hosts or GPUs that it should use",
        what="The hostfile has one line per host: NAME slots=NUMBER. --include, --exclude, --num_nodes and --num_gpus "
        "must fit it; on a single machine without hostfile the visible GPUs are counted.",
        remedy="Correct the hostfile (/job/hostfile by default) and the options; check nvidia-smi; --master_addr ADDR.",
        pattern=r"Hostfile is empty or not formatted correctly|Hostfile contains (?:a bad entry|multiple entries)"
        r"|not found in hostfile"
        r"|Num nodes is >1 but no extra nodes"
        r"|Cannot specify num_nodes/gpus with"
        r"|Unable to detect suitable master address|include_str and exclude_str are mutually exclusive",
        role=Role.GENERAL,
    ),
    Signature(
        id="launcher_sees_no_gpu",
        title="the deepspeed launcher sees no GPU on this machine",
        what="torch counts none: there is none, torch is a build for the CPU or does not fit the driver, or a "
        "container or CUDA_VISIBLE_DEVICES hides them.",
        remedy='python -c "import torch; print(torch.version.cuda, torch.cuda.device_count())"; nvidia-smi. A machine '
        "without a GPU: DS_ACCELERATOR=cpu, in a current DeepSpeed.",
        pattern=r"Unable to proceed, no GPU resources available|no GPU resources available",
        role=Role.GENERAL,
        evidence=("https://github.com/deepspeedai/DeepSpeed/blob/v0.16.0/deepspeed/launcher/runner.py",),
    ),
    Signature(
        id="local_ranks_contradict",
        title="the local rank is given twice, with different values",
        what="args.local_rank, LOCAL_RANK and MPI's variables must agree: two launchers are nested, or a default of "
        "the script is used.",
        remedy="One launcher; in the script read LOCAL_RANK from the environment.",
        pattern=r"Mismatch in local rank setting|!= OMPI_COMM_WORLD_LOCAL_RANK"
        r"|args\.local_rank of \S+ is an unknown type",
    ),
    Signature(
        id="cpu_optimizer_on_gpu",
        title="DeepSpeed's CPU optimizer gets parameters on the GPU",
        what="DeepSpeedCPUAdam (Adagrad, Lion) is for offload_optimizer; the config offloads nothing.",
        remedy='"offload_optimizer": {"device": "cpu"} in the config, or an optimizer for the GPU (FusedAdam, '
        "torch's AdamW).",
        pattern=r"CPU(?:Adam|Adagrad|Lion) param is on",
    ),
    Signature(
        id="checkpoint_not_found",
        title="the directory has no complete DeepSpeed checkpoint of the kind that is read",
        what="Most likely the path or the tag is wrong: the directory above global_step… is expected, with the file "
        "latest in it. Otherwise the files of some ranks or hosts are missing, the training used no ZeRO (there are no "
        "…_optim_states.pt then), or another framework saved it.",
        remedy="Name the directory above global_step… and the tag; copy the files of all hosts. Without ZeRO the "
        'weights are in mp_rank_00_model_states.pt under "module". Universal checkpoints need ds_to_universal first.',
        pattern=r"Invalid for universal checkpoint|seems a bogus DeepSpeed checkpoint folder|No ZeRO files found in"
        r"|is not a model state checkpoint|\.pt is not a zero checkpoint|non zero checkpoint|state is missing in "
        r"checkpoint\. Verify|Empty ds_version in checkpoint|optimizer global state is missing"
        r"|can't find \S+ files in directory|Unable to find 'latest' file at|can't find model states file at",
        role=Role.GENERAL,
    ),
    Signature(
        id="inference_limits",
        title="deepspeed.init_inference: a limit of its kernels or of the request",
        what="The message names it: a prompt longer than max_tokens, beam search, a model without a policy, kernels "
        "and a policy at once, a checkpoint of another kind.",
        remedy="max_tokens (max_out_tokens) in init_inference; num_beams=1; replace_with_kernel_inject=False with an "
        "injection_policy, or AutoTP.",
        pattern=r"Please increase max_tokens in the DeepSpeed Inference|exceeds maximum length of"
        r"|is not a valid DtypeEnum|Generic injection only supported with|Cuda graph is not supported for"
        r"|cuda graph is not supported with this model|model must be a torch\.nn\.Module, got"
        r"|Triton needs to be installed to use deepspeed|No default policy found|Cannot use both "
        r"user specified injection policy|checkpoint contains neither 'model' or 'module'|does not support `num_beams`"
        r"|Meta Tensor checkpoint loading not supported|Unable to retake inference workspace"
        r"|pipeline parallelism is currently not "
        r"supported in inference",
        role=Role.GENERAL,
    ),
    Signature(
        id="flops_profiler",
        title="the flops profiler meets a module that it has not prepared",
        what="Modules that are added or replaced while the profiler runs, or that are used without being called, have "
        "no counters.",
        remedy='"flops_profiler": {"enabled": false}, or a current DeepSpeed.',
        pattern=r"object has no attribute '__flops__'",
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/2046",),
    ),
    Signature(
        id="shape_of_partitioned_parameter",
        title="an index beyond a tensor's dimensions",
        what="With ZeRO-3 most likely code that reads the shape of a partitioned parameter, which is empty; the whole "
        "shape is in ds_shape. Otherwise a tensor or a tuple has fewer dimensions than expected.",
        remedy="A release of the package (peft) that knows ZeRO-3; read the shape before deepspeed.zero.Init, or "
        "within deepspeed.zero.GatheredParameters.",
        pattern=r"IndexError: tuple index out of range|IndexError: Dimension out of range",
        role=Role.POSSIBLE,
        evidence=("https://github.com/huggingface/peft/issues/2916",),
    ),
    Signature(
        id="one_process_several_gpus",
        title="one process sees several GPUs, and DeepSpeed needs one process for each",
        what="The script was started without a launcher (python, one task per host), or the framework's own variable "
        "for the number of processes is not set.",
        remedy="torchrun --nproc_per_node N or deepspeed; ms-swift: NPROC_PER_NODE=N; LLaMA-Factory: "
        "FORCE_TORCHRUN=1. For one GPU CUDA_VISIBLE_DEVICES=0.",
        pattern=r"DeepSpeed is not compatible with MP\b|Please launch distributed training with `?llamafactory-cli"
        r"|Please use `?FORCE_TORCHRUN=1",
        evidence=("https://github.com/modelscope/ms-swift/issues/2698",),
    ),
    Signature(
        id="config_error",
        title="DeepSpeed refuses its config",
        what="The message says which setting. Elasticity: the batch sizes and the number of ranks must fit each other.",
        remedy="Correct it; `python -m dsfix check CONFIG` finds these and other mistakes.",
        pattern=r"DeepSpeedConfigError: |ElasticityConfigError|ElasticityIncompatibleWorldSize|ElasticityError: ",
        role=Role.FAMILY,
    ),
)
