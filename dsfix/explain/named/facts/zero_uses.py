"""What scripts do to a ZeRO-3 model: state_dict, copies, tied and new weights, large layers; estimates of memory."""

from __future__ import annotations

from ..fact import Fact

FACTS = (
    Fact(
        id="state_dict_of_partitioned_model",
        names=("state_dict", "model.state_dict", "module.state_dict", "engine.module", "model_engine.module"),
        title="state_dict() of a ZeRO-3 model has empty tensors",
        what="Under ZeRO-3 model.state_dict() and the parameters of engine.module are placeholders of the shape [0] "
        "on each rank; saving them gives a file of some KB or MB that loads with size mismatches. Parameters below "
        "stage3_param_persistence_threshold are whole, the others are not.",
        remedy="engine.save_16bit_model or accelerator.get_state_dict(model) on all ranks, with "
        "stage3_gather_16bit_weights_on_model_save, or engine.save_checkpoint and zero_to_fp32.py.",
        beside=("zero-3 + saving", "zero-3 + loading", "zero-3 + empty", "saving + empty", "zero-3 + incomplete"),
        evidence=("deepspeed/runtime/engine.py: _zero3_consolidated_16bit_state_dict",),
    ),
    Fact(
        id="torch_save_of_engine",
        names=("torch.save", "engine.module", "model_engine.module", "module.state_dict"),
        title="torch.save of a model that DeepSpeed trains",
        what="Up to ZeRO-2 engine.module.state_dict() is whole on every rank, in the engine's dtype: rank 0 may save "
        "it with torch.save, and a model without DeepSpeed loads it. With ZeRO-3 its tensors are empty. The fp32 "
        "weights, the optimizer's states and the scheduler are only in engine.save_checkpoint.",
        remedy="torch.save(engine.module.state_dict(), …) on rank 0 up to ZeRO-2; engine.save_16bit_model on all "
        "ranks with ZeRO-3; engine.save_checkpoint on all ranks to resume.",
        beside=("saving + how", "loading + how", "saving + fails", "saving + differs"),
        evidence=("deepspeed/runtime/engine.py: DeepSpeedEngine.module_state_dict",),
    ),
    Fact(
        id="load_state_dict_into_partitioned_model",
        names=("load_state_dict", "_load_from_state_dict"),
        title="load_state_dict into a ZeRO-3 model",
        what="The partitioned parameters have the shape [0], so that load_state_dict reports size mismatches, also "
        "with strict=False. After deepspeed.initialize it would also miss the optimizer's fp32 weights, which "
        "overwrite the model's at the first step.",
        remedy="Load before deepspeed.initialize and outside of zero.Init; else module by module under "
        "GatheredParameters(…, modifier_rank=0), as the docs of GatheredParameters show.",
        beside=("zero-3 + loading", "zero-3 + empty", "loading + empty"),
        evidence=("deepspeed/runtime/zero/partition_parameters.py: GatheredParameters",),
    ),
    Fact(
        id="copy_of_partitioned_model",
        names=("copy.deepcopy", "copy_model", "deepcopy_model", "ema_model", "ModelEmaV2", "AveragedModel"),
        title="copies and moving averages of a model with ZeRO-3",
        what="A copy of a ZeRO-3 model copies placeholders: it has no weights, shares hooks with the original, and "
        "copy.deepcopy may fail. With ZeRO-1/2 the model is whole, but in 16 bits, in which a moving average's small "
        "changes are rounded away.",
        remedy="Make the copy before deepspeed.initialize and zero.Init. Update it under GatheredParameters with all "
        "ranks, from safe_get_full_fp32_param; keep the average in fp32.",
        beside=("zero-3", "ema"),
        patches=("zero3_copy_of_module",),
        evidence=("deepspeed/runtime/zero/parameter_offload.py: ZeROOrderedDict",),
    ),
    Fact(
        id="tied_weights_under_zero",
        names=("tie_weights", "tie_word_embeddings", "lm_head.weight", "embed_tokens.weight", "_tied_weights_keys"),
        title="tied weights with ZeRO",
        what="A tied weight is one parameter under two names, and ZeRO's files of the optimizer have it under one; "
        "zero_to_fp32 adds the other from the checkpoint's list of shared parameters. transformers saves one of them, "
        "too: a loader that asks for all reports a missing key, which is harmless if the model ties them afterwards.",
        remedy="Tie in the model's constructor, before deepspeed.initialize. Load with strict=False and tie again.",
        beside=("incomplete", "zero to fp32"),
        evidence=("deepspeed/runtime/engine.py: DeepSpeedEngine._get_shared_params",),
    ),
    Fact(
        id="changing_partitioned_model",
        names=("resize_token_embeddings", "add_module", "add_adapter", "get_peft_model"),
        title="changing a ZeRO-3 model's modules",
        what="Weights that exist under zero.Init are empty placeholders: resizing or copying them by code that does "
        "not gather gives empty or wrong ones. Modules that are added after deepspeed.initialize are not partitioned, "
        "have no hooks, and are in no optimizer.",
        remedy="Make all changes before deepspeed.initialize; resize with transformers, which gathers, or under "
        "GatheredParameters.",
        beside=("zero-3 + embedding", "zero-3 + empty", "zero-3 + changing + fails"),
        patches=("zero3_late_attached_module",),
        evidence=("deepspeed/runtime/zero/parameter_offload.py: setup_zero_stage3_hooks",),
    ),
    Fact(
        id="estimated_memory",
        names=(
            *("estimate_zero3_model_states_mem_needs_all_live", "estimate_zero3_model_states_mem_needs_all_cold"),
            *("estimate_zero2_model_states_mem_needs_all_live", "estimate_zero2_model_states_mem_needs_all_cold"),
            *("estimate_zero3_model_states_mem_needs", "estimate_zero2_model_states_mem_needs"),
        ),
        title="estimate_zero…_model_states_mem_needs: what the estimate leaves out",
        what="It is of parameters, gradients and Adam's states only: activations, buckets, temporary buffers, the "
        "CUDA context and fragmentation come on top, and activations are often the most. All parameters count as "
        "trained. For the host the numbers are per node, and times 1.5.",
        remedy="Add the activations: measure a small run with see_memory_usage. Frozen parameters need 2 bytes each.",
        evidence=("deepspeed/runtime/zero/stage3.py: estimate_zero3_model_states_mem_needs",),
    ),
    Fact(
        id="tiled_linear",
        names=("TiledLinear", "TiledLinearReturnBias", "zero.TiledLinear"),
        title="TiledLinear: what it is for",
        what="It splits one very large Linear into tiles that ZeRO-3 gathers one after the other; without ZeRO-3 it "
        "only costs time. The weights are under other names (linears.i.j.weight), so that checkpoints of a Linear do "
        "not fit, and code that reads module.weight fails.",
        remedy="copy_params_from(linear) on all ranks, or init_linear=linear when it is made.",
        evidence=("deepspeed/runtime/zero/tiling.py: TiledLinear",),
    ),
    Fact(
        id="memory_efficient_linear_function",
        names=("memory_efficient_linear", "mem_efficient_linear", "zero3_linear_wrap", "LinearFunctionForZeroStage3"),
        title="zero.Init replaces torch.nn.functional.linear",
        what="Once zero.Init has been entered (with its default), since 0.19.4 also once deepspeed.initialize has "
        "partitioned a model, functional.linear is a function of DeepSpeed's that keeps the parameter instead of a "
        "gathered copy for the backward pass, for the rest of the process. Other code meets it, too: subclasses of "
        "tensors, quantized weights, torch.compile, torch.func and second derivatives may fail in it.",
        remedy='"memory_efficient_linear": false in zero_optimization, in the config that zero.Init and '
        "deepspeed.initialize get.",
        patches=("zero3_bias_only_linear",),
        evidence=("deepspeed/runtime/zero/linear.py",),
    ),
    Fact(
        id="on_device_context",
        names=("OnDevice", "deepspeed.OnDevice", "utils.OnDevice"),
        title="deepspeed.OnDevice makes a model without its weights",
        what="With device='meta' tensors have a shape and no data; the weights have to come from checkpoint= of "
        "init_inference, for models that it knows. What is not in the checkpoint, and buffers that are computed in "
        "__init__, stay on the meta device: Cannot copy out of meta tensor. It is not for training.",
        remedy="OnDevice(device='meta') only with init_inference and its checkpoint; zero.Init for ZeRO-3.",
        evidence=("deepspeed/utils/init_on_device.py: OnDevice",),
    ),
)
