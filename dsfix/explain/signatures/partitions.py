"""ZeRO: buckets, groups, gathering and hpZ."""

from __future__ import annotations

from ..signature import Role, Signature, pull

SIGNATURES = (
    Signature(
        id="zero3_gather_of_two_dtypes",
        title="ZeRO-3: all params must have the same dtype",
        what="Parameters of two dtypes (an adapter in fp32, a model in bf16) are gathered together: in 0.17.2 to "
        "0.17.4 whenever that happens, through 0.19.2 with torch_autocast.",
        remedy="DeepSpeed 0.19.3 or later; or all parameters in one dtype; or from 0.17.5 on without torch_autocast.",
        pattern=r"AssertionError: all params must have the same dtype",
        affects={"deepspeed": ">=0.17.2,<0.19.3"},
        evidence=(*pull(8113), *pull(7462)),
    ),
    Signature(
        id="zero3_gathered_twice",
        title="ZeRO-3: expected param to be inflight",
        what="A parameter that is waited for is not being gathered. 0.17.2 to 0.17.4 gather all parameters once per "
        "dtype of communication (torch_autocast); otherwise hooks or another thread have changed its state.",
        remedy="DeepSpeed 0.17.5 or later; or without torch_autocast.",
        pattern=r"AssertionError: expected param [^\n]* to be inflight",
        role=Role.GENERAL,
        evidence=pull(7462),
    ),
    Signature(
        id="zero3_gather_unique_dtype",
        title="ZeRO-3: parameters of several dtypes are gathered together: only one unique element",
        what="Through 0.12.2 all parameters that are gathered at once must have one dtype.",
        remedy="DeepSpeed 0.12.3 or later; or all parameters in one dtype.",
        pattern=r"in all_gather_coalesced[\s\S]*expected there to be only one unique element",
        affects={"deepspeed": "<0.12.3"},
        evidence=pull(4647),
    ),
    Signature(
        id="zero3_functorch",
        title="torch.func.grad or jacrev through a ZeRO-3 model: must override the setup_context staticmethod",
        what="ZeRO-3's own autograd functions are written in a form that torch.func does not take.",
        remedy="ZeRO-2, or torch.autograd.grad instead of torch.func; DeepSpeed 0.19.1 has the missing methods.",
        pattern=r"deepspeed/runtime/zero/[\s\S]*must override the setup_context",
        affects={"deepspeed": "<0.19.1"},
        evidence=pull(7916),
    ),
    Signature(
        id="hpz_small_parameter",
        title="ZeRO++ hpZ: a parameter is smaller than the parts of the ranks",
        what="With zero_hpz_partition_size above 1, ranks beyond the end of a small parameter copy a part that does "
        'not exist: "length must be non-negative" from 0.13.5 to 0.14.3, "start out of range" through 0.19.4.',
        remedy='DeepSpeed 0.19.5 or later; or "zero_hpz_partition_size": 1.',
        pattern=r"in _partition_param_sec[\s\S]*(?:length must be non-negative|start out of range)",
        affects={"deepspeed": ">=0.13.5,<0.19.5"},
        evidence=(*pull(5652), *pull(8210)),
    ),
    Signature(
        id="zero1_prescaled_gradients",
        title="ZeRO-1/2: prescale_gradients or gradient_predivide_factor is not yet supported with reduce scatter",
        what="Reduce-scatter, which ZeRO-2 uses, does not scale before the reduction. Through 0.12.6 ZeRO-1 is "
        "refused, too, although it does not use it.",
        remedy='"zero_optimization": {"reduce_scatter": false}; ZeRO-1: DeepSpeed 0.13.0 or later.',
        pattern=r"(?:pre-scale gradients|gradient_predivide_factor != 1\.0) is not yet supported with",
        affects={"deepspeed": ">=0.12.0"},
        evidence=pull(4964),
    ),
    Signature(
        id="zero12_empty_norm",
        title="ZeRO-1/2: stack expects each tensor to be equal size, of the norms of groups",
        what="0.13.2 gives the norm of a group of which this rank holds nothing another shape than the others.",
        remedy="DeepSpeed 0.13.3 or later, or 0.13.1; fewer parameter groups.",
        pattern=r"in scaled_global_norm[\s\S]*stack expects each tensor to be equal size",
        affects={"deepspeed": "==0.13.2"},
        evidence=pull(5148),
    ),
    Signature(
        id="quantized_weight_shape",
        title="ZeRO++ zero_quantized_weights: a weight's number of elements does not fit the quantization",
        what="Each rank's part is quantized in groups: its size must be a multiple of 8 times the number of groups, "
        "and no group may have 16 000 elements or more. Odd sizes (a head, a bias, a vocabulary that is not padded) "
        "do not fit.",
        remedy='"zero_quantized_weights": false; or pad the weight (a vocabulary to a multiple of 64 * ranks), or '
        "another number of ranks.",
        pattern=r"Qantized weight requires the number of weights|\d / \d+ is larger than 16k"
        r"|Adaptive grouping algorithm cannot find a group size",
        evidence=pull(3784),
    ),
    Signature(
        id="quantized_gradients_need_whole_nodes",
        title="ZeRO++ zero_quantized_gradients: the ranks are not whole nodes",
        what="Its all-to-all takes every GPU that a host shows as a rank, on one host or several.",
        remedy="As many ranks per host as GPUs are visible (CUDA_VISIBLE_DEVICES), on all hosts the same; or "
        '"zero_quantized_gradients": false.',
        pattern=r"(?:num_gpus not equal to device per node|num_nodes<2|num_gpus must >=1), cannot initialize All-To-All"
        r"|num_nodes<2 cannot initialize All-To-All",
    ),
    Signature(
        id="gathered_parameter_moved",
        title="GatheredParameters with modifier_rank: a parameter was moved off the accelerator within it",
        what="At its end the values of that rank are broadcast, from the rank's own device.",
        remedy="Change the values in place (copy_), without .cpu() or .to(); modifier_rank=None to read only.",
        pattern=r"but broadcast requires it to be on ",
    ),
    Signature(
        id="partitions_on_several_devices",
        title="ZeRO-3: partitions on the GPU and on the CPU are to become one buffer",
        what="The engine copies all partitions of a group into one buffer, and they are on different devices. Most "
        "likely a part of the model was made or moved otherwise than the rest: outside of zero.Init, on the CPU, by "
        "device_map, or with another remote_device.",
        remedy="All of the model inside one zero.Init (or all outside of it), and nothing moved by hand before "
        "deepspeed.initialize.",
        pattern=r"assert len\(set\(t\.device for t in tensors\)\) == 1",
    ),
)
