"""Mixtures of experts: DeepSpeed's MoE layer, its gate and groups, and models that have their own experts."""

from __future__ import annotations

from ..fact import Fact

_LAYER = "deepspeed.moe.layer:MoE"
_GATE = "deepspeed.moe.sharded_moe"
_UTILS = "deepspeed.moe.utils"

FACTS = (
    Fact(
        id="moe_layer_arguments",
        names=("moe.layer", "layer.MoE", "ep_size", "expert_parallel_size", "deepspeed/moe/layer.py:__init__"),
        title="deepspeed.moe.layer.MoE: experts and ep_size",
        what="num_experts counts all experts of the layer, ep_size the ranks that share them: num_experts must be "
        "divisible by it, and the world size, too. ep_size 1 (the default) puts all experts on each rank. The expert "
        "passed is a module that is copied, and the layer returns (output, l_aux, exp_counts): l_aux has to be added "
        "to the loss by the script.",
        remedy="ep_size as large as the ranks allow to save memory; ZeRO-0, 1 or 2. Models of transformers do not "
        "have this layer; AutoEP (0.19.2 or later) divides the experts of some of them.",
        evidence=(_LAYER,),
    ),
    Fact(
        id="moe_parameter_groups",
        names=(
            *("split_params_into_different_moe_groups_for_optimizer", "is_moe_param", "create_moe_param_groups"),
            *("is_moe_param_group", "configure_moe_param_groups", "split_params_grads_into_shared_and_expert_params"),
        ),
        title="MoE and ZeRO: experts need parameter groups of their own",
        what="The optimizer's groups have to be split by split_params_into_different_moe_groups_for_optimizer: each "
        "given group needs a 'name', and the experts' groups get moe=True, without which ZeRO refuses the optimizer. "
        "ZeRO divides the experts' states only over the ranks that hold the same experts: with ep_size as large as "
        "the world not at all.",
        remedy="split_params_into_different_moe_groups_for_optimizer({'params': [...], 'name': 'parameters'}), given "
        "to initialize as model_parameters or to the optimizer. Since 0.14.1 the groups of the config's optimizer are "
        "split by DeepSpeed itself.",
        patches=("moe_group_order",),
        evidence=(f"{_UTILS}:split_params_into_different_moe_groups_for_optimizer",),
    ),
    Fact(
        id="moe_capacity",
        names=("capacity_factor", "eval_capacity_factor", "min_capacity", "drop_tokens", "drop_policy"),
        title="MoE: capacity, and tokens that no expert takes",
        what="Each expert takes at most capacity_factor times k times tokens over experts, and min_capacity (4) at "
        "least; what is beyond gets no expert's output, without a message. drop_tokens=False pads all experts to the "
        "fullest one, which costs memory and time. Evaluation uses eval_capacity_factor, and results depend on the "
        "batch's composition.",
        remedy="A larger factor (evaluation 2.0), or drop_tokens=False to compare with other implementations; watch "
        "exp_counts.",
        patches=("moe_top2_drops_tokens", "moe_topk_probs_drops_routes"),
        evidence=(f"{_GATE}:_capacity",),
    ),
    Fact(
        id="moe_gate_functions",
        names=(
            *("top1gating", "top2gating", "TopKGate", "deepspeed/moe/sharded_moe.py:top1gating"),
            *(
                "deepspeed/moe/sharded_moe.py:top2gating",
                "deepspeed/moe/sharded_moe.py:topkgating",
                "noisy_gate_policy",
            ),
            *("use_rts", "top2_2nd_expert_sampling"),
        ),
        title="the gate of DeepSpeed's MoE: k, noise, chance",
        what="k 1 and 2 have gates of their own, larger ones need 0.15 or later. The gate computes in fp32 and is "
        "random: with k 1 use_rts drops random tokens, with k 2 the second expert is sampled, and RSample (k 1) and "
        "Jitter add noise in training, so that two runs, or two ranks with the same input, differ. With k 1 a batch "
        "with fewer tokens than min_capacity fails.",
        remedy="use_rts=False, top2_2nd_expert_sampling=False (0.14 or later) and no noise for reproducible results; "
        "a smaller min_capacity for short inputs.",
        evidence=(f"{_GATE}:TopKGate",),
    ),
    Fact(
        id="moe_auxiliary_loss",
        names=(
            "l_aux",
            "aux_loss",
            "router_aux_loss_coef",
            "output_router_logits",
            "exp_counts",
            "load_balancing_loss",
        ),
        title="the loss that balances experts is the script's matter",
        what="DeepSpeed's MoE returns l_aux for each layer and adds it to nothing; transformers' models add theirs "
        "only with output_router_logits=True, weighted by router_aux_loss_coef. Without it a few experts may get all "
        "tokens. There is no z-loss in DeepSpeed's gate.",
        remedy="loss + coefficient (about 0.01) times the sum of all layers' l_aux; output_router_logits=True in the "
        "model's config for training.",
        beside=("experts", "unbalanced"),
        evidence=(f"{_GATE}:top1gating", "transformers.models.mixtral.modeling_mixtral"),
    ),
    Fact(
        id="moe_tutel",
        names=("use_tutel", "tutel_moe"),
        title="MoE with Tutel",
        what="use_tutel=True takes effect only with the package tutel installed and, before 0.19.4, k 1 (otherwise it "
        "is left out with a message). It replaces the dispatch of tokens; the gate stays DeepSpeed's.",
        remedy="Install tutel for the installed torch and CUDA; leave use_tutel out to see whether an error is its.",
        patches=("moe_tutel_tensor_parallel",),
        evidence=(f"{_GATE}:MOELayer.__init__",),
    ),
    Fact(
        id="moe_all_to_all",
        names=(
            *("_AllToAll", "deepspeed/moe/sharded_moe.py:forward", "MOELayer", "_set_ep_group"),
            "deepspeed/moe/sharded_moe.py:backward",
        ),
        title="MoE: tokens go to the ranks of their experts and back",
        what="Every rank of an expert-parallel group has to run every MoE layer, forward and backward, as often as "
        "the others: a rank with fewer batches, or that skips the layer, lets the others wait. With drop_tokens=False "
        "the group agrees on a capacity first. The inputs must have the gate's hidden size and the experts' type.",
        remedy="Equal numbers of batches (drop_last); a dummy input for a rank without one. See the other ranks' "
        "tracebacks.",
        beside=("hang", "connection", "fails", "experts"),
        evidence=(f"{_GATE}:MOELayer.forward",),
    ),
    Fact(
        id="moe_tensor_parallel_experts",
        names=("enable_expert_tensor_parallelism", "use_residual"),
        title="MoE with tensor parallelism, and residual MoE",
        what="The mpu is used for the experts only with enable_expert_tensor_parallelism: without it each "
        "tensor-parallel rank has whole experts. Tokens that are the same on these ranks are divided among them and "
        "gathered again. use_residual adds an expert that all tokens pass, with weights of its own.",
        remedy="The same choice for training and loading.",
        patches=("moe_tutel_tensor_parallel",),
        evidence=(f"{_LAYER}._create_process_groups",),
    ),
    Fact(
        id="moe_leaf_modules",
        names=(
            *("set_z3_leaf_modules", "set_z3_leaf_module", "unset_z3_leaf_modules", "z3_leaf", "z3_leaf_module"),
            *("get_z3_leaf_modules", "leaf_module"),
        ),
        title="set_z3_leaf_modules: ZeRO-3 with experts that some ranks skip",
        what="Under ZeRO-3 a layer's weights are gathered by all ranks when it runs; an expert that gets tokens on "
        "some ranks only lets the job hang. A leaf module (0.13 or later) is gathered whole, with everything below "
        "it, at once: no hang, and memory for all its experts. Since 0.18.0 the blocks of Mixtral, Qwen2 and Qwen3 "
        "are leaf modules unless zero_optimization.leaf_module says otherwise.",
        remedy="set_z3_leaf_modules(model, [the block's class]) before deepspeed.initialize; or leaf_module.classes "
        "in the config (0.18 or later), accelerate's deepspeed_moe_layer_cls_names. DeepSpeed's own MoE layer is for "
        "ZeRO-2 instead.",
        evidence=("deepspeed.utils.z3_leaf_module:set_z3_leaf_modules",),
    ),
    Fact(
        id="moe_blocks_of_transformers",
        names=(
            *("MixtralSparseMoeBlock", "Qwen2MoeSparseMoeBlock", "Qwen3MoeSparseMoeBlock", "DeepseekV2MoE"),
            *("DeepseekV3MoE", "DeepseekMoE", "DbrxFFN", "OlmoeSparseMoeBlock", "PhimoeSparseMoeBlock"),
            *("Qwen3VLMoeTextSparseMoeBlock", "deepspeed_moe_layer_cls_names"),
        ),
        title="training a transformers model with experts",
        what="DeepSpeed treats its experts as ordinary layers, without expert parallelism (but for AutoEP, 0.19.2 or "
        "later). Under ZeRO-3, where each expert is a module, ranks whose tokens go to different experts wait for "
        "each other for ever, unless the block is a leaf module (since 0.18.0 Mixtral's, Qwen2's and Qwen3's are); "
        "many small experts gathered one by one are slow.",
        remedy="set_z3_leaf_modules(model, [the block's class]) before initialize, or accelerate's "
        "deepspeed_moe_layer_cls_names. transformers 5 keeps all experts of a layer of Mixtral, Qwen and DeepSeek-V3 "
        "in one weight: no hang there.",
        beside=("hang", "slow", "zero-3", "how", "connection"),
        evidence=("deepspeed.utils.z3_leaf_module", "https://github.com/deepspeedai/DeepSpeed/pull/4966"),
    ),
    Fact(
        id="moe_checkpoint_files",
        names=(
            *("_save_moe_checkpoint", "_load_moe_checkpoint", "load_moe_state_dict", "_get_expert_ckpt_name"),
            *("deepspeed/runtime/engine.py:load_moe_state_dict", "deepspeed/runtime/engine.py:_save_moe_checkpoint"),
            "deepspeed/runtime/engine.py:_get_non_moe_state_dict",
        ),
        title="checkpoints with DeepSpeed's MoE",
        what="Each expert is a file of its own (layer_L_expert_E_mp_rank_...), written by the rank that has it, so "
        "that all ranks save and see the same directory. Loading takes the files by the number of experts and layers; "
        "zero_to_fp32 does not read them.",
        remedy="One shared directory; the same num_experts and order of layers. With another ep_size load the weights "
        "only: load_optimizer_states=False.",
        evidence=("deepspeed.runtime.engine:DeepSpeedEngine.load_moe_state_dict",),
    ),
    Fact(
        id="inference_of_experts",
        names=("_create_ep_parallel_group", "moe_experts", "deepspeed/inference/engine.py:_create_ep_parallel_group"),
        title="init_inference of a model with DeepSpeed's MoE layers",
        what="Through 0.17.5 the number of experts (moe_experts, 1 by default) was taken for the size of the "
        "expert-parallel groups, so that the number of ranks had to be a multiple of it. Since 0.17.6 it is "
        "moe.ep_size, which must not exceed the number of ranks and has to be that of the MoE layers.",
        remedy='moe={"ep_size": N} with 0.17.6 or later; before it, moe_experts=[N] with the ep_size of the layers.',
        evidence=("deepspeed.inference.engine:InferenceEngine._create_ep_parallel_group",),
    ),
    Fact(
        id="moe_group_functions",
        names=(
            *("_create_expert_and_data_parallel", "_get_expert_data_parallel_group", "_get_expert_parallel_group"),
            *("deepspeed/utils/groups.py:_create_expert_and_data_parallel", "set_deepspeed_parallelism"),
            *("deepspeed/utils/groups.py:_get_expert_data_parallel_group", "_create_expert_data_and_model_parallel"),
            "deepspeed/utils/groups.py:_ensure_divisibility",
        ),
        title="the groups of experts",
        what="deepspeed.initialize makes them for each MoE layer that it finds in the model "
        "(set_deepspeed_parallelism). A layer that is added later, or run before, has none: its group's name is "
        "missing. The world size has to be divisible by ep_size, with tensor or pipeline parallelism each stage's "
        "ranks.",
        remedy="All MoE layers in the model before initialize; without initialize call "
        "module.set_deepspeed_parallelism() on every rank.",
        evidence=("deepspeed.utils.groups:_create_expert_and_data_parallel",),
    ),
    Fact(
        id="automatic_expert_parallelism",
        names=("AutoEP", "autoep_size", "_configure_expert_parallel"),
        title="AutoEP: experts of a transformers model over the ranks",
        what="The section expert_parallel (0.19.2 or later) replaces the expert blocks of Mixtral, Qwen3, Qwen3.5, "
        "DeepSeek-V2 and V3 and some others, or of named patterns, in deepspeed.initialize. Before 0.19.7 an "
        "optimizer made from the model before it (as Trainer and accelerate do without one in the config) keeps the "
        "replaced parameters: the new experts are not trained, often without an error.",
        remedy="0.19.7 or later, or the optimizer in DeepSpeed's config or given as a callable; autoep_size that "
        "divides ranks and experts; no load_balance_coeff.",
        evidence=(
            "deepspeed.runtime.engine:DeepSpeedEngine._configure_expert_parallel",
            "https://github.com/deepspeedai/DeepSpeed/pull/8354",
        ),
    ),
)
