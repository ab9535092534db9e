"""Options of offloading to NVMe, and functions in which it fails."""

from __future__ import annotations

from ..fact import Fact

FACTS = (
    Fact(
        id="of_nvme_path",
        names=(
            "nvme_path",
            "offload_param_nvme_path",
            "offload_optimizer_nvme_path",
        ),
        title="nvme_path: a directory on a local disk, for ZeRO-3 alone",
        what="NVMe needs ZeRO-3 and the operator async_io (libaio); with ZeRO-1 and 2 the device nvme of "
        "offload_optimizer means the CPU. Files are in zero_stage_3/…/rankN, the same names for each job: two jobs "
        "with one path damage each other. It must be writable on each host, on a file system with direct IO (tmpfs "
        "and some others lack it), with 12 or more bytes per parameter for the optimizer.",
        remedy="An empty directory per job on a local NVMe disk (in docker a mounted volume); ds_report's line "
        "async_io; offload to the CPU first shows whether NVMe is the cause.",
        evidence=("deepspeed.runtime.zero.stage3.DeepSpeedZeroOptimizer_Stage3._configure_tensor_swapping",),
    ),
    Fact(
        id="of_nvme_buffers",
        names=(
            "buffer_count",
            "buffer_size",
            "max_in_cpu",
        ),
        beside=(
            "nvme",
            "offload",
            "fails",
            "memory",
            "oom",
        ),
        title="buffer_count, buffer_size, max_in_cpu: the host's buffers for NVMe",
        what="offload_param: buffer_count (5) times buffer_size (1e8 elements) of pinned host memory per rank; the "
        "largest parameter's partition must fit one buffer, and as many parameters as are in use at once need one "
        "each; max_in_cpu (1e9 elements) of the weights stay on the host. offload_optimizer: buffer_count at least "
        "the optimizer's states plus gradient and weight, 4 for Adam, of the size of a sub-group. null is refused.",
        remedy='"buffer_size" above the largest partition (an embedding), "buffer_count" higher if it says there is '
        "no buffer; smaller sub_group_size and buffer_size if the host's memory is short.",
        evidence=("deepspeed.runtime.swap_tensor.partitioned_param_swapper",),
    ),
    Fact(
        id="of_pipeline_read",
        names=(
            "pipeline_read",
            "pipeline_write",
        ),
        title="pipeline_read, pipeline_write: the optimizer on NVMe overlaps reading, computing and writing",
        what="They are for offload_optimizer on NVMe only, and do nothing on the CPU. The next sub-group is read, and "
        "the last one written, while one is updated: each needs buffers of its own beside the 4 of Adam, so pinned "
        "host memory grows. The overlap shows only with several sub-groups.",
        remedy='"buffer_count" 8 for one of them and 12 for both (Adam), with a sub_group_size that makes several '
        "sub-groups; false if the host's memory is short or a swap fails.",
        evidence=("deepspeed.runtime.swap_tensor.pipelined_optimizer_swapper",),
    ),
    Fact(
        id="of_fast_init",
        names=("fast_init",),
        title="fast_init: only for the optimizer on NVMe",
        what="fast_init of offload_optimizer shortens setting up the fp32 weights where parameters and optimizer are "
        "on NVMe; with the CPU it does nothing. transformers' _fast_init of from_pretrained is another thing.",
        remedy="Leave it false unless setting up takes long with NVMe.",
        evidence=("deepspeed.runtime.zero.stage3.DeepSpeedZeroOptimizer_Stage3._create_fp32_partitions",),
    ),
    Fact(
        id="of_aio_section",
        names=(
            "queue_depth",
            "intra_op_parallelism",
            "single_submit",
            "overlap_events",
            "use_gds",
            "ds_nvme_tune",
        ),
        title="aio: how NVMe is read and written",
        what="The section aio stands beside zero_optimization, at the top level, and changes the speed with device "
        "nvme. intra_op_parallelism is called thread_count through 0.16.3, and later releases ignore that name. "
        "Parameters smaller than a block or 1 MB do not go to the disk; use_gds (0.15.0 and later) needs CUDA, cufile "
        "and the operator gds.",
        remedy="ds_nvme_tune --nvme_dir PATH (0.15.2 and later) finds values for the disk.",
        evidence=("deepspeed.runtime.swap_tensor.aio_config",),
    ),
    Fact(
        id="at_parameter_swapper",
        names=(
            "deepspeed/runtime/swap_tensor/partitioned_param_swapper.py:get_buffer",
            "deepspeed/runtime/swap_tensor/partitioned_param_swapper.py:_configure_aio",
            "deepspeed/runtime/swap_tensor/partitioned_param_swapper.py:_get_swap_buffers",
        ),
        title="NVMe offload of parameters: buffers, and the operator",
        what="get_buffer fails where a partition is larger than buffer_size (an embedding) or all buffer_count "
        "buffers are in use; _get_swap_buffers where a parameter has no buffer. _configure_aio needs nvme_path in "
        "offload_param and the operator async_io.",
        remedy='Larger "buffer_size" and "buffer_count" in offload_param, smaller stage3_prefetch_bucket_size; '
        "ds_report's line async_io; offload_param to the CPU.",
        evidence=("deepspeed.runtime.swap_tensor.partitioned_param_swapper",),
    ),
    Fact(
        id="at_optimizer_swapper",
        names=(
            "deepspeed/runtime/swap_tensor/partitioned_optimizer_swapper.py:swap_in_optimizer_state",
            "deepspeed/runtime/swap_tensor/partitioned_optimizer_swapper.py:swap_out_optimizer_state",
            "deepspeed/runtime/swap_tensor/pipelined_optimizer_swapper.py:swap_in_optimizer_state",
            "deepspeed/runtime/swap_tensor/utils.py:allocate",
            "deepspeed/runtime/swap_tensor/optimizer_utils.py:_initialize_parameters",
        ),
        title="NVMe offload of the optimizer: a swap fails",
        what="An assertion about pinned_buffers or swap buffers is buffer_count: Adam's weight, gradient and two "
        "moments need 4, pipeline_read and pipeline_write 4 more each. One about wait() is a file that was not read "
        "or written whole: the disk is full or fails, or two jobs share nvme_path.",
        remedy='"buffer_count" 4 (8 or 12 if pipelined), pipeline_read and pipeline_write false, an own empty '
        "nvme_path; DeepSpeed 0.18.3 or later.",
        evidence=("deepspeed.runtime.swap_tensor.partitioned_optimizer_swapper",),
    ),
)
