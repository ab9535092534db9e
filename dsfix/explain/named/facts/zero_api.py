"""ZeRO-3's functions for scripts: zero.Init, GatheredParameters, and what a partitioned parameter has."""

from __future__ import annotations

from ..fact import Fact

_PARAMETERS = "deepspeed/runtime/zero/partition_parameters.py"

FACTS = (
    Fact(
        id="zero_init_context",
        names=("zero.Init", "zero_init", "partition_parameters.Init"),
        title="deepspeed.zero.Init: what it does and needs",
        what="Each module's parameters are moved to the GPU, broadcast from rank 0 and partitioned when its __init__ "
        "ends; all ranks have to construct the same model. From then on they have the shape [0], so that code that "
        "initializes, copies or loads weights later does nothing or fails on sizes. Without config_dict_or_path the "
        "parameters become fp16 and stay on the GPU, unless dtype and remote_device are given.",
        remedy="zero.Init(config_dict_or_path=config), and GatheredParameters(params, modifier_rank=0) around all "
        "that touches weights afterwards.",
        evidence=(f"{_PARAMETERS}: Init", "https://deepspeed.readthedocs.io/en/latest/zero3.html"),
    ),
    Fact(
        id="zero_init_not_active",
        names=("zero.Init", "zero_init", "zero3_init_flag", "HfDeepSpeedConfig"),
        title="from_pretrained makes a model without zero.Init",
        what="transformers' from_pretrained and from_config partition a model while they make it only if a config of "
        "ZeRO-3 is known by then: TrainingArguments or accelerate's plugin (through accelerate 0.34 only with "
        "zero3_init_flag true) makes an HfDeepSpeedConfig, to which transformers keeps a weak reference. A model "
        "that is made before it, after the object is gone, or by its class without zero.Init is whole on each rank.",
        remedy="Accelerator or TrainingArguments first, and kept in a variable; then from_pretrained. Without them "
        "HfDeepSpeedConfig(config), kept in a variable. Current accelerate and transformers.",
        beside=("ineffective",),
        evidence=("transformers.integrations.deepspeed:HfDeepSpeedConfig",),
    ),
    Fact(
        id="zero_init_takes_long",
        names=("zero.Init", "zero_init"),
        title="making a model under zero.Init takes long",
        what="Each parameter is allocated whole on every GPU, broadcast from rank 0 and partitioned, one after the "
        "other; from_pretrained then gathers, fills and partitions each module once more. This takes minutes for a "
        "large model, more over a slow network, and longer than the timeout if ranks start or read at different "
        "speeds.",
        remedy="Weights on a fast local disk, NCCL over the fast network (NCCL_DEBUG=INFO tells), a larger "
        "DEEPSPEED_TIMEOUT. Where the model fits into each process, zero.Init is not needed.",
        beside=("slow", "hang + start", "start + connection"),
        evidence=(f"{_PARAMETERS}: Init._zero_init_param",),
    ),
    Fact(
        id="zero_init_of_weights",
        names=("_init_weights", "init_weights", "reset_parameters", "post_init"),
        title="initializing weights under zero.Init does nothing",
        what="Under zero.Init a module's parameters are partitioned at the end of its own __init__. What a parent "
        "does to them afterwards sees tensors of the shape [0]: normal_ and zero_ then change nothing, without an "
        "error, and copy_, xavier or orthogonal fail on the dimensions. module.apply alone gathers.",
        remedy="with deepspeed.zero.GatheredParameters(list(module.parameters(recurse=False)), modifier_rank=0): "
        "initialize on rank 0.",
        beside=("zero-3 + empty", "zero-3 + wrong", "zero-3 + parameters", "empty"),
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/2650",),
    ),
    Fact(
        id="zero_init_not_noticed",
        names=("is_zero_init_model",),
        title="whether a transformers model is made under zero.Init",
        what="from_pretrained enters zero.Init only while transformers knows a ZeRO-3 config: TrainingArguments with "
        "deepspeed, or an HfDeepSpeedConfig that is kept alive, has to exist before the model is made (accelerate "
        "before 1.0: with zero3_init_flag). A quantized model is made without it. A model made earlier is whole on "
        "every process, and is partitioned by deepspeed.initialize.",
        remedy="Make TrainingArguments (or dschf = HfDeepSpeedConfig(config)) first, then the model.",
        evidence=("transformers/integrations/deepspeed.py: is_deepspeed_zero3_enabled",),
    ),
    Fact(
        id="gathered_parameters_rules",
        names=("GatheredParameters", "zero.GatheredParameters", "modifier_rank"),
        title="GatheredParameters: what it needs",
        what="All ranks have to enter it, with the same parameters: inside `if rank == 0` it hangs. Changes are kept "
        "only with modifier_rank, and then only that rank's; without it they are dropped (an error since 0.18.7 with "
        "zero_optimization's enable_sanity_checks). After deepspeed.initialize the optimizer's fp32 copies take no "
        "notice, and overwrite the change at the next step.",
        remedy="Gather on all ranks and act on one; few parameters at a time, as each GPU then has them whole. To "
        "change weights in training: deepspeed.utils.safe_set_full_fp32_param as well.",
        evidence=(f"{_PARAMETERS}: GatheredParameters",),
    ),
    Fact(
        id="gradients_are_not_gathered",
        names=("GatheredParameters", "zero.GatheredParameters"),
        title="GatheredParameters gathers weights, not gradients",
        what="Under it param.data is whole, and param.grad still None: ZeRO keeps the reduced gradients in partitions "
        "of their own until the step.",
        remedy="deepspeed.utils.safe_get_full_grad(param) on all ranks, after engine.backward and before engine.step; "
        "safe_set_full_grad to change it (0.15.3 and later).",
        beside=("gradients",),
        evidence=("deepspeed/utils/tensor_fragment.py: safe_get_full_grad",),
    ),
    Fact(
        id="quantized_under_zero_init",
        names=("zero.Init", "zero_init", "is_zero_init_model", "zero3_init_flag", "HfDeepSpeedConfig"),
        title="a quantized model is not made under zero.Init",
        what="from_pretrained with a quantization config (4 or 8 bits) leaves zero.Init out in current transformers: "
        "each process loads the whole model, and ZeRO-3 can partition it afterwards only if the 4-bit weights are "
        "stored in the floating type of the other weights.",
        remedy="bnb_4bit_quant_storage = the model's dtype with current transformers, peft and bitsandbytes; or "
        "ZeRO-2 for QLoRA, or LoRA on 16 bits with ZeRO-3.",
        beside=("quantized",),
        evidence=("transformers/modeling_utils.py: get_init_context",),
    ),
    Fact(
        id="external_parameters",
        names=("register_external_parameter", "unregister_external_parameter", "external_parameters"),
        title="ZeRO-3: a weight that another module uses",
        what="ZeRO-3 gathers a parameter in front of the module that owns it. One that another module uses is found "
        "by itself only where it is read as an attribute of its module in a forward pass, or returned by it; not "
        "where a reference was kept, and not in the backward pass of functions of their own. It must be registered at "
        "the module whose forward uses it, before that runs.",
        remedy="deepspeed.zero.register_external_parameter(self, other.weight) in __init__ of the module that uses "
        "it, or GatheredParameters(…, fwd_module=self).",
        evidence=(f"{_PARAMETERS}: register_external_parameter",),
    ),
    Fact(
        id="safe_get_functions",
        names=(
            *("safe_get_full_fp32_param", "safe_get_full_optimizer_state", "safe_get_full_grad"),
            *("safe_get_local_fp32_param", "safe_get_local_optimizer_state", "safe_get_local_grad"),
        ),
        title="safe_get_full_…: what they return, and when",
        what="The functions for full values communicate: all ranks call them, for the same parameters; the local ones "
        "are for ZeRO-3 only. Gradients exist between engine.backward and engine.step, with ZeRO-1/2 at the boundary "
        "of accumulation only; they are reduced and, in fp16, scaled. None comes back for frozen parameters, and for "
        "fp32 weights and states at stage 0.",
        remedy="Call it outside of `if rank == 0`. One call per parameter is slow: not in every step.",
        evidence=("deepspeed/utils/tensor_fragment.py",),
    ),
    Fact(
        id="safe_set_functions",
        names=(
            *("safe_set_full_fp32_param", "safe_set_full_optimizer_state", "safe_set_full_grad"),
            *("safe_set_local_fp32_param", "safe_set_local_optimizer_state", "safe_set_local_grad"),
            "safe_update_full_grad_vectorized",
        ),
        title="safe_set_full_…: what they change",
        what="Each rank writes its part of the value that it gets: all ranks must call it with the same value. "
        "safe_set_full_fp32_param changes the optimizer's fp32 weights; the model's 16-bit weights follow at the next "
        "step only, unless they are set as well. Gradients can be set since 0.15.3, after backward and before step.",
        remedy="The same code on all ranks; broadcast a random or computed value first.",
        patches=("zero3_offload_set_full_gradient", "zero3_offload_set_local_gradient"),
        evidence=("deepspeed/utils/tensor_fragment.py",),
    ),
    Fact(
        id="attributes_of_partitioned_parameters",
        names=("ds_id", "ds_tensor", "ds_numel", "ds_shape", "ds_status", "ds_summary", "ds_process_group"),
        title="ZeRO-3's attributes of a parameter (ds_…)",
        what="zero.Init or deepspeed.initialize adds them: ds_shape and ds_numel are the whole parameter's, ds_tensor "
        "is this rank's part, ds_status tells whether it is gathered. A parameter that is made or replaced afterwards "
        "(add_module, resize, an adapter, param = nn.Parameter(…)) has none, and ZeRO-3's code fails on it.",
        remedy="Change the model before deepspeed.initialize, and under zero.Init make new modules in it, too. In "
        "one's own code: getattr(param, 'ds_numel', param.numel()).",
        evidence=(f"{_PARAMETERS}: Init._convert_to_deepspeed_param",),
    ),
    Fact(
        id="numel_under_zero3",
        names=(
            *("p.numel", "param.numel", "parameter.numel", "params.numel", "parameters.numel", "weight.numel"),
            *("num_parameters", "param.shape"),
        ),
        title="counting parameters under ZeRO-3 gives 0",
        what="A parameter that ZeRO-3 has partitioned is a placeholder with no elements, whose numel() is 0 and whose "
        "shape is [0]; those below stage3_param_persistence_threshold stay whole once they have been gathered, so "
        "that some count. The model is not empty.",
        remedy="sum(getattr(p, 'ds_numel', p.numel()) for p in model.parameters()), ds_shape for the shape; or count "
        "before deepspeed.initialize.",
        beside=("zero-3", "empty", "parameters + wrong", "parameters + how", "frozen"),
        evidence=(f"{_PARAMETERS}: free_param",),
    ),
    Fact(
        id="status_of_partitioned_parameters",
        names=("ZeroParamStatus", "ZeroParamStatus.INFLIGHT", "ZeroParamStatus.NOT_AVAILABLE", "NOT_AVAILABLE"),
        title="ZeroParamStatus: in which state ZeRO-3 found a parameter",
        what="AVAILABLE is gathered, NOT_AVAILABLE partitioned, INFLIGHT being gathered. A parameter in an unexpected "
        "state mostly means that the modules ran otherwise than in the recorded pass or than on other ranks: "
        "conditions on data, generation in between, a module without the engine, or two threads.",
        remedy="Run the same modules in each step on all ranks, and set_z3_leaf_modules for experts. "
        "stage3_prefetch_bucket_size: 0 tells whether it is the prefetching.",
        evidence=("deepspeed/runtime/zero/partitioned_param_coordinator.py: fetch_sub_module",),
    ),
)
