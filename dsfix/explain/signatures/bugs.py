"""Known bugs of single DeepSpeed releases that one line recognises."""

from __future__ import annotations

from ..signature import Role, Signature

_UPSTREAM = "https://github.com/deepspeedai/DeepSpeed/"

SIGNATURES = (
    Signature(
        id="attention_of_newer_transformers",
        title="code for attention modules of transformers before 4.48",
        what="transformers 4.48 removed num_heads, rope_theta and others from its attention modules. What reads them "
        "is older: most likely a project's own attention (flash attention patches), or DeepSpeed's kernel injection "
        "through 0.17.2.",
        remedy="The release of transformers that the project requires; init_inference: DeepSpeed 0.17.3 or later, or "
        "replace_with_kernel_inject=False.",
        pattern=r"'\w+Attention' object has no attribute '(?:num_heads|num_key_value_heads|rope_theta"
        r"|rotary_emb|hidden_size)'",
        role=Role.POSSIBLE,
        evidence=(f"{_UPSTREAM}pull/7443",),
    ),
    Signature(
        id="wandb_sync",
        title="wandb 0.20 and later has no log(sync=…)",
        what="The monitor passes an argument that wandb removed.",
        remedy='DeepSpeed 0.17.2 or later, wandb before 0.20, or no "wandb" in the config.',
        pattern=r"log\(\) got an unexpected keyword argument 'sync'",
        patches=("wandb_log_sync",),
        evidence=(f"{_UPSTREAM}pull/7383",),
    ),
    Signature(
        id="bias_without_weight",
        title="ZeRO-3: a linear layer whose weight is frozen and whose bias is trained",
        what="BitFit, LoRA with bias, and partly frozen models fail in the backward pass of ZeRO-3's linear layer.",
        remedy="DeepSpeed 0.17.4 or later, or freeze the bias, too.",
        pattern=r"zero/linear\.py[^\n]*\n[\s\S]{0,600}(?:local variable 'dim' referenced before assignment"
        r"|variable 'dim' where it is not associated)",
        patches=("zero3_bias_only_linear",),
        evidence=(f"{_UPSTREAM}pull/7449",),
    ),
    Signature(
        id="bf16_optimizer_state",
        title="'BF16_Optimizer' object has no attribute 'state'",
        what="bf16 without ZeRO, or ZeRO-1 with fp32 accumulation, has an optimizer without the usual attributes, "
        "which others read.",
        remedy="DeepSpeed 0.14.5 or later.",
        pattern=r"'BF16_Optimizer' object has no attribute 'state'",
        affects={"deepspeed": "<0.14.5"},
        evidence=(f"{_UPSTREAM}pull/5767",),
    ),
    Signature(
        id="bf16_dp_process_group",
        title="bf16 without ZeRO: load_checkpoint fails",
        what="0.17.6 reads an attribute that this optimizer does not have.",
        remedy="DeepSpeed 0.18.0 or later, or 0.17.5; or dsfix's patch bf16_stage0_load_checkpoint.",
        pattern=r"object has no attribute 'dp_process_group'",
        affects={"deepspeed": "==0.17.6"},
        patches=("bf16_stage0_load_checkpoint",),
        evidence=(f"{_UPSTREAM}pull/7586",),
    ),
    Signature(
        id="refresh_fp32_params",
        title="load_checkpoint(load_module_only=True) in fp32 without ZeRO, or without an optimizer",
        what="DeepSpeed calls a method of its own optimizers, which is not there.",
        remedy="DeepSpeed 0.16.5 or later.",
        pattern=r"object has no attribute 'refresh_fp32_params'",
        affects={"deepspeed": ">=0.13.0,<0.16.5"},
        role=Role.GENERAL,
        evidence=(f"{_UPSTREAM}pull/7133",),
    ),
    Signature(
        id="launcher_apostrophe",
        title="No closing quotation: text with a single quote is parsed as a shell would",
        what="Most likely the deepspeed launcher through 0.12.3, and an apostrophe in an argument of the script. "
        "Otherwise a command or a config that Python takes apart by shlex.",
        remedy="DeepSpeed 0.12.4 or later, or torchrun.",
        pattern=r"ValueError: No closing quotation",
        affects={"deepspeed": "<0.12.4"},
        role=Role.POSSIBLE,
        evidence=(f"{_UPSTREAM}pull/4660",),
    ),
    Signature(
        id="nvme_file_name",
        title="optimizer offload to NVMe: a file name is too long",
        what="0.13.0 to 0.13.2 make file names that grow with the number of parameters.",
        remedy="DeepSpeed 0.13.3 or later.",
        pattern=r"File name too long: '\S*(?:\.swp|zero_stage_3)",
        affects={"deepspeed": ">=0.13.0,<0.13.3"},
        role=Role.GENERAL,
        evidence=(f"{_UPSTREAM}pull/5176",),
    ),
    Signature(
        id="communication_dtype_bf16",
        title='communication_data_type "bf16" is refused',
        what="Through 0.14.0 its name is bfp16.",
        remedy='DeepSpeed 0.14.1 or later, or "bfp16".',
        pattern=r"Invalid communication_data_type",
        affects={"deepspeed": "<0.14.1"},
        role=Role.GENERAL,
        evidence=(f"{_UPSTREAM}pull/5297",),
    ),
    Signature(
        id="count_needs_newer_torch",
        title="0.18.3 and later need torch 2.3 for ZeRO's backward pass",
        what="They count the used parameters by functions that torch 2.1 and 2.2 do not have.",
        remedy="torch 2.3 or later, or DeepSpeed 0.18.2.",
        pattern=r"count_used_parameters_in_backward requires internal PyTorch APIs",
        affects={"deepspeed": ">=0.18.3"},
        role=Role.GENERAL,
        evidence=(f"{_UPSTREAM}issues/7756",),
    ),
    Signature(
        id="frozen_parameter_not_found",
        title="saving: a frozen parameter is not found by name",
        what="A frozen parameter was replaced or tied after deepspeed.initialize.",
        remedy="engine.save_checkpoint(…, exclude_frozen_parameters=True), or change the model before "
        "deepspeed.initialize.",
        pattern=r"failed to find frozen [^\n]* in named params",
        affects={"deepspeed": ">=0.12.0"},
        role=Role.GENERAL,
        evidence=(f"{_UPSTREAM}pull/6626",),
    ),
    Signature(
        id="grouped_mm_alignment",
        title="ZeRO-1/2 and experts that use torch._grouped_mm: weights are not aligned",
        what="ZeRO-1 and ZeRO-2 place parameters one behind the other in a buffer, at any address.",
        remedy='"parameter_alignment" in zero_optimization, since 0.19.7; else another implementation of the experts.',
        pattern=r"strides? should be multiple of 16 bytes",
        affects={"deepspeed": ">=0.12.0"},
        role=Role.GENERAL,
        evidence=(f"{_UPSTREAM}issues/8276",),
    ),
    Signature(
        id="deepcopy_of_module",
        title="ZeRO-3: the model cannot be copied",
        what="Through 0.15.1 copy.deepcopy of a ZeRO-3 model (or torch.compile) makes a container without its "
        "arguments.",
        remedy="DeepSpeed 0.15.2 or later; copy before deepspeed.initialize.",
        pattern=r"missing 1 required positional argument: 'parent_module'",
        affects={"deepspeed": "<0.15.2"},
        role=Role.GENERAL,
        evidence=(f"{_UPSTREAM}pull/6564",),
    ),
    Signature(
        id="swap_folder",
        title="ZeRO-3 with parameters on NVMe and the optimizer on the CPU: save_checkpoint fails",
        what="It looks for an optimizer on NVMe, which there is not.",
        remedy="DeepSpeed 0.16.4 or later, or the optimizer on NVMe, too.",
        pattern=r"'NoneType' object has no attribute 'swap_folder'",
        affects={"deepspeed": ">=0.13.0,<0.16.4"},
        role=Role.GENERAL,
        evidence=(f"{_UPSTREAM}pull/6963",),
    ),
    Signature(
        id="hub_list_files",
        title="import deepspeed fails: huggingface_hub has no list_files_info",
        what="Inference v2 imports a name that huggingface_hub 0.23 removed.",
        remedy="DeepSpeed 0.13.3 or later, or huggingface_hub before 0.23.",
        pattern=r"cannot import name 'list_files_info' from 'huggingface_hub",
        affects={"deepspeed": ">=0.12.4,<0.13.3"},
        role=Role.GENERAL,
        evidence=(f"{_UPSTREAM}pull/5144",),
    ),
    Signature(
        id="python_too_old",
        title="a package needs a newer Python: | between types",
        what="X | None is Python 3.10's. DeepSpeed 0.19.2 uses it; Python 3.9 fails in each deepspeed.initialize.",
        remedy="Python 3.10 or later; for Python 3.9 another release than 0.19.2.",
        pattern=r"unsupported operand type\(s\) for \|: '",
        role=Role.GENERAL,
        evidence=(f"{_UPSTREAM}pull/8119",),
    ),
    Signature(
        id="collective_on_cpu",
        title="a collective gets a tensor on the CPU, which NCCL does not take",
        what="Most likely a tensor that was not moved to the GPU, or offloaded: MoE with ZeRO-1/2 and optimizer "
        "offload in 0.13.2 to 0.13.4, deepspeed.comm.log_summary through 0.17.1.",
        remedy='Move it to the GPU; a newer DeepSpeed; torch.distributed.init_process_group("cpu:gloo,cuda:nccl").',
        pattern=r"No backend type associated with device type cpu|RuntimeError: Tensors must be CUDA and dense",
        role=Role.GENERAL,
        evidence=(f"{_UPSTREAM}pull/5220",),
    ),
)
