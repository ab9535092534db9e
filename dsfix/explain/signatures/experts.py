"""Mixture of experts."""

from __future__ import annotations

from ..signature import Role, Signature, pull

SIGNATURES = (
    Signature(
        id="experts_averaged_over_all_ranks",
        title="MoE + ZeRO-1 with contiguous_gradients false: wrong gradients with ep_size above 1, without an error",
        what="Without contiguous gradients ZeRO-1 averages each gradient over all data-parallel ranks: those of an "
        "expert, too, which other ranks hold in another expert's place.",
        remedy='"contiguous_gradients": true in zero_optimization. With ep_size 1 nothing is wrong.',
        pattern=r"ZeRO Stage 1 has not been thoroughly tested with MoE",
        affects={"deepspeed": ">=0.12.0"},
        # buffered_reduce_fallback in the source of 0.12.0 to 0.19.8; run on 0.14.0 and 0.18.9 with two ranks
        role=Role.POSSIBLE,
    ),
    Signature(
        id="moe_capacity_above_tokens",
        title="MoE: selected index k out of range: an expert's capacity is larger than the number of tokens",
        what="The gate selects as many tokens as an expert has places. It has more places than there are tokens with "
        "a capacity factor above the number of experts, or (through 0.14.0, k=1, drop_tokens=False) where another "
        "rank has more tokens.",
        remedy="DeepSpeed 0.19.4 or later. A capacity_factor and an eval_capacity_factor of at most the number of "
        "experts; with drop_tokens=False DeepSpeed 0.14.1 or later.",
        pattern=r"moe/sharded_moe\.py[\s\S]*selected index k out of range"
        r"|k not in range for dimension[\s\S]*in _top_idx",
        affects={"deepspeed": "<0.19.4"},
        evidence=(*pull(5353), *pull(8155)),
    ),
    Signature(
        id="moe_topk_without_dropping",
        title="MoE with k above 2 and drop_tokens=False: UnboundLocalError, locations",
        what="The gate for more than two experts sets a variable only where it drops tokens.",
        remedy="DeepSpeed 0.17.1 or later; or drop_tokens=True, or k of 1 or 2.",
        pattern=r"in topkgating[\s\S]*local variable 'locations'",
        affects={"deepspeed": ">=0.15.0,<0.17.1"},
        evidence=pull(7163),
    ),
    Signature(
        id="moe_offload_norm_on_cpu",
        title="MoE + ZeRO-1/2 + optimizer offload: no backend for the CPU's tensors",
        what="0.13.2 to 0.13.4 average the experts' norms over the ranks on the CPU, for which NCCL has no backend.",
        remedy="DeepSpeed 0.13.5 or later, or 0.13.1.",
        pattern=r"in _average_expert_grad_norms[\s\S]*"
        r"(?:No backend type associated with device type cpu|Tensors must be CUDA)",
        affects={"deepspeed": ">=0.13.2,<0.13.5"},
        evidence=pull(5220),
    ),
    Signature(
        id="bf16_moe_weights_restored",
        title="BF16_Optimizer + MoE: loading weights without the optimizer: list index out of range",
        what="Through 0.16.3 the fp32 weights are restored group by group with the rank of another group: with "
        "expert parallelism it does not exist, or is another rank's part.",
        remedy="DeepSpeed 0.16.4 or later; or load the optimizer's states, too.",
        pattern=r"bf16_optimizer\.py\", line \d+, in _restore_from_bit16_weights[\s\S]*IndexError: list index",
        affects={"deepspeed": "<0.16.4"},
        evidence=pull(7054),
    ),
    Signature(
        id="sizes_not_divisible",
        title="the number of ranks, experts or heads is not divisible by a parallel size",
        what="Most likely the ranks by ep_size (expert parallelism larger than the job), by tensor times pipeline "
        "parallelism, or heads, hidden size and experts by the ranks that share them.",
        remedy="The line above the error names the two numbers: change that parallel size, or the number of ranks.",
        pattern=r"AssertionError: \d+ is not divisible by \d+",
        role=Role.POSSIBLE,
        evidence=("https://github.com/facebookresearch/FAMBench/pull/103",),
    ),
    Signature(
        id="expert_group_missing",
        title="MoE: an expert's process group was not made",
        what="deepspeed.moe.layer.MoE makes the groups of its ep_size in deepspeed.initialize. Most likely parameters "
        "are marked as experts (allreduce, group_name) without such a layer, or a group name is of another ep_size. "
        "With Megatron: its own model-parallel unit made the groups, or Megatron-DeepSpeed and DeepSpeed are of "
        "different ages.",
        remedy="Let MoE mark its parameters, and make param groups with "
        "deepspeed.moe.utils.split_params_into_different_moe_groups_for_optimizer. Megatron-DeepSpeed: its current "
        "main with a current DeepSpeed; --num-experts 1 for a dense model.",
        pattern=r"expert (?:data )?parallel group is not initialized",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/4646",),
    ),
    Signature(
        id="moe_group_without_name",
        title="MoE: a parameter group without a name",
        what="split_params_into_different_moe_groups_for_optimizer makes a group of experts per group, by its 'name'.",
        remedy='Give each group a name: {"params": …, "name": "decay"}.',
        pattern=r"moe/utils\.py[\s\S]*KeyError: 'name'",
        evidence=("https://github.com/deepspeedai/Megatron-DeepSpeed/issues/174",),
    ),
    Signature(
        id="experts_under_zero3",
        title="a mixture of experts under ZeRO-3",
        what="transformers' MoE blocks run the experts that have tokens, so each rank and step runs other modules: "
        "ZeRO-3's order of gathering does not hold (parameters in flight, invalidated trace), and ranks wait for each "
        "other. DeepSpeed's own MoE layers (deepspeed.moe) do not work with ZeRO-3 at all.",
        remedy="DeepSpeed 0.13.0 or later, and deepspeed.utils.set_z3_leaf_modules(model, [the class of the MoE "
        "block]) before deepspeed.initialize (accelerate: deepspeed_moe_layer_cls_names). deepspeed.moe: ZeRO-2 or "
        "lower.",
        pattern=r"(?m:^)(?=[^\n]{0,400}(?:ZeRO.?3|ZERO.?3|[Zz]ero.?3|[Ss]tage.?3))"
        r"(?=[^\n]{0,400}(?:not work|n't work|InFlight|[Ii]n.?flight|ompatib|not support|an ?not use|\bfails?\b"
        r"|报错|错误))"
        r"[^\n]{0,400}?(?:ixture of experts| MoE model| MOE model|MoE training|MOE training|MoE layer"
        r"|parse MoE|parse MOE|ixture-of-experts| Mixtral|Mixtral-8x|Qwen3-MoE|MoE模型)",
        role=Role.POSSIBLE,
        evidence=pull(4966),
    ),
    Signature(
        id="megatron_moe_arguments",
        title="Megatron-DeepSpeed: training with experts fails after its update",
        what="Megatron-DeepSpeed and DeepSpeed must be of about the same age: num_experts, local_rank and the shapes "
        "of the layers' inputs are passed in other ways since the update of mid-2023.",
        remedy="The current main of Megatron-DeepSpeed with a current DeepSpeed.",
        pattern=r"num_experts not properly passed|[Mm]egatron[^\n]{0,80}(?:DeepSpeed MoE|the MoE training"
        r"|MoE training when)"
        r"|(?:DeepSpeed MoE|MoE training)[^\n]{0,80}[Mm]egatron|[Ff]ix\w* (?:the )?MoE training when",
        role=Role.FAMILY,
        evidence=("https://github.com/deepspeedai/Megatron-DeepSpeed/pull/192",),
    ),
)
