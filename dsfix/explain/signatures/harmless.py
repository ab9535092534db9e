"""Warnings of single releases that change nothing, and what hides the real error."""

from __future__ import annotations

from ..signature import Role, Signature, pull

SIGNATURES = (
    Signature(
        id="rate_before_first_step",
        title="the learning rate is logged as 0 until the first step (harmless at the start)",
        what="In fp16 the first steps are skipped while the loss scale comes down, so the scheduler has not stepped "
        "yet, and the Trainer logs 0.",
        remedy="Nothing. If it goes on beyond some dozen steps, all gradients overflow: bf16, or what makes them so "
        "large.",
        pattern="tried to get lr value before scheduler/optimizer started stepping",
        role=Role.NOTE,
    ),
    Signature(
        id="sparse_attn_unavailable",
        title="sparse_attn is not available (only sparse attention needs it)",
        what="This operator is for old versions of CUDA, torch and triton: through 0.3 not for CUDA 11, later "
        "not for torch 2. Everything else works without it; other operators have lines of their own.",
        remedy="Nothing, unless the model uses DeepSpeed's SparseSelfAttention: then versions that the message names. "
        "Installing: no DS_BUILD_SPARSE_ATTN=1.",
        pattern=r"sparse_attn requires |sparse_attn is not compatible|sparse_attn cuda is not available"
        r"|\[WARNING\] +using untested triton version",
        role=Role.NOTE,
        evidence=("https://github.com/lucidrains/DALLE-pytorch/issues/70",),
    ),
    Signature(
        id="broadcast_without_autograd",
        title="c10d::broadcast_: an autograd kernel was not registered (harmless)",
        what="Through 0.13.2 DeepSpeed broadcasts the parameters themselves, and torch warns that no gradient flows "
        "through a broadcast. None should.",
        remedy="Nothing; DeepSpeed 0.13.3 or later does not cause it.",
        pattern=r"c10d::broadcast_: an autograd kernel was not registered",
        affects={"deepspeed": "<0.13.3"},
        role=Role.NOTE,
        evidence=(*pull(5075), *pull(5113)),
    ),
    Signature(
        id="mics_prints_its_handle",
        title="MiCS prints HANDLE at every all-gather (harmless)",
        what="A line for debugging was left in 0.13.2 to 0.14.2.",
        remedy="Nothing; DeepSpeed 0.14.3 or later is silent.",
        pattern=r"(?m)^(?:\S+: )?HANDLE <(?:torch|deepspeed)\.",
        affects={"deepspeed": ">=0.13.2,<0.14.3"},
        role=Role.NOTE,
        evidence=pull(5574),
    ),
    Signature(
        id="amp_functions_renamed",
        title="torch.cuda.amp.custom_fwd and custom_bwd are deprecated (harmless)",
        what="torch 2.4 has another name for them, which ZeRO-3's linear layer uses since 0.15.0.",
        remedy="Nothing; DeepSpeed 0.15.0 or later does not cause it.",
        pattern=r"`torch\.cuda\.amp\.custom_(?:fwd|bwd)\(args\.\.\.\)` is deprecated",
        affects={"deepspeed": "<0.15.0", "torch": ">=2.4"},
        role=Role.NOTE,
        evidence=pull(5811),
    ),
    Signature(
        id="pydantic_field_arguments",
        title="pydantic: extra keyword arguments on Field are deprecated, new_param (harmless)",
        what="0.15.0 to 0.15.4 declare one key of the config, mics_shard_size, in pydantic's old form.",
        remedy="Nothing; DeepSpeed 0.16.0 or later does not cause it.",
        pattern=r"extra keyword arguments on `Field` is deprecated[^\n]*new_param",
        affects={"deepspeed": ">=0.15.0,<0.16.0"},
        role=Role.NOTE,
        evidence=pull(6764),
    ),
    Signature(
        id="pydantic_model_fields",
        title="pydantic: model_fields of an instance is deprecated (harmless)",
        what="0.15.0 to 0.17.0 read a config's fields from the object, and pydantic 2.11 wants its class to be asked.",
        remedy="Nothing; DeepSpeed 0.17.1 or later, or pydantic 2.10.",
        pattern=r"Accessing the '?model_fields'? attribute on the instance is deprecated",
        affects={"deepspeed": ">=0.15.0,<0.17.1"},
        role=Role.NOTE,
        evidence=(*pull(7193), *pull(7333)),
    ),
    Signature(
        id="distutils_deprecated",
        title="DeprecationWarning: distutils, of deepspeed/utils/numa.py (harmless)",
        what="Through 0.16.8 DeepSpeed looks for numactl with a module that Python 3.12 no longer has.",
        remedy="Nothing before Python 3.12; there setuptools, or DeepSpeed 0.16.9 or later.",
        pattern=r"utils/numa\.py[^\n]*The distutils package is deprecated",
        affects={"deepspeed": "<0.16.9"},
        role=Role.NOTE,
        evidence=pull(7290),
    ),
    Signature(
        id="state_dict_by_position",
        title="torch: positional arguments of state_dict are deprecated (harmless)",
        what="Through 0.14.1 save_checkpoint asks the model for its weights in the old form.",
        remedy="Nothing; DeepSpeed 0.14.2 or later does not cause it.",
        pattern=r"Positional args are being deprecated, use kwargs instead",
        affects={"deepspeed": "<0.14.2"},
        role=Role.NOTE,
        evidence=pull(5408),
    ),
    Signature(
        id="device_of_the_group_unknown",
        title="NCCL: the device used by this process is currently unknown (harmless)",
        what="The process group was made without the device of its rank, as DeepSpeed does through 0.17.2. NCCL takes "
        "the GPU with the number of the rank, or the current one.",
        remedy="Nothing where each rank has its own GPU; DeepSpeed 0.17.3 or later, or device_id= in "
        "torch.distributed.init_process_group (not with torch 2.6.1 to 2.7.0, where it may hang).",
        pattern=r"devices? used by this process (?:is|are) currently unknown",
        role=Role.NOTE,
        evidence=pull(7266),
    ),
    Signature(
        id="pipeline_partitioning_logged",
        title="pipeline: a logging error at start, is_pipe_partitioned (harmless)",
        what="A line of 0.12.3's log has a comma too many.",
        remedy="Nothing; DeepSpeed 0.12.4 or later.",
        pattern=r"is_pipe_partitioned=[\s\S]*not all arguments converted during string formatting",
        affects={"deepspeed": "==0.12.3"},
        role=Role.NOTE,
        evidence=pull(4728),
    ),
    Signature(
        id="triton_cache_reported_on_nfs",
        title="Triton's cache appears to be on an NFS system",
        what="0.14.1 to 0.15.0 look at ~/.triton/autotune only: they say so although TRITON_CACHE_DIR is elsewhere, "
        "and not where TRITON_CACHE_DIR is on NFS. On NFS the end of the job may hang or fail.",
        remedy="TRITON_CACHE_DIR=/a/directory/on/a/local/disk; then ignore it.",
        pattern=r"cache directory for DeepSpeed Triton autotune, [^\n]*, appears to be on an NFS system",
        affects={"deepspeed": ">=0.14.1"},
        role=Role.NOTE,
        evidence=pull(6487),
    ),
    Signature(
        id="engine_deleted_after_error",
        title="Exception ignored in DeepSpeedEngine.__del__: another error is before it",
        what="deepspeed.initialize failed, and 0.17.1 to 0.18.4 fail again where they take the unfinished engine down.",
        remedy="Look for the first error, above this one; DeepSpeed 0.18.5 or later does not add a second.",
        pattern=r"Exception ignored in: <function DeepSpeedEngine\.__del__",
        affects={"deepspeed": ">=0.17.1"},
        role=Role.FOLLOW_UP,
        evidence=(*pull(7410), *pull(7813)),
    ),
    Signature(
        id="cpu_adam_without_cuda",
        title="cpu_adam is compiled without its CUDA part (harmless)",
        what="No CUDA toolkit, or one that does not match torch: the operator works without the part that copies to "
        "the GPU while it computes.",
        remedy="Nothing; with a toolkit of torch's version it is compiled with it.",
        pattern=r"cuda is missing or is incompatible with installed torch, only cpu ops can be compiled",
        role=Role.NOTE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/3613",),
    ),
)
