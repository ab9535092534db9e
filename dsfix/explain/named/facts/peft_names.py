"""PEFT and bitsandbytes under DeepSpeed: adapters, and weights in 4 and 8 bits."""

from __future__ import annotations

from ..fact import Fact

FACTS = (
    Fact(
        id="adapter_files_empty",
        names=(
            "SFTTrainer",
            "adapter.safetensors",
            "get_peft_model_state_dict",
            "adapter_model.bin",
            "adapter_model.safetensors",
            "adapter_model",
            "lora_B",
            "lora_A",
            "model.save_pretrained",
            "PeftSavingCallback",
            "SavePeftModelCallback",
        ),
        beside=(
            "adapter + empty",
            "adapter + incomplete",
            "adapter + none",
        ),
        title="PEFT: an adapter of a ZeRO-3 model is saved",
        what="save_pretrained and get_peft_model_state_dict take model.state_dict() unless they are given one: "
        "under ZeRO-3 it has empty tensors (shape [0], a file of some hundred KB or less), and callbacks "
        "or code under `if rank == 0` that call them write such files. Until then the training itself is "
        "right.",
        remedy="trainer.save_model() on all ranks, or state = accelerator.get_state_dict(model) on all and "
        "save_pretrained(…, state_dict=state) on rank 0; from an old checkpoint zero_to_fp32.py, then the "
        "names with lora_.",
        evidence=("peft.utils.save_and_load.get_peft_model_state_dict",),
    ),
    Fact(
        id="adapter_looks_untrained",
        names=(
            "lora_B",
            "lora_A",
            "lora_embedding_A",
        ),
        beside=("gradients", "not falling", "none", "zero loss", "changing", "parameters + differs"),
        title="PEFT: whether an adapter is trained under DeepSpeed",
        what="lora_B starts at 0 and is not 0 after some steps. Printed from the model it may look empty, or "
        "unchanged (ZeRO-3's partitions; .grad is None under ZeRO). It stays 0 if every step is skipped "
        "(fp16 overflows, learning rate 0), if checkpointing cuts the graph (inputs that require no "
        "gradient), or if the optimizer was made before get_peft_model.",
        remedy="get_peft_model before prepare and before the optimizer; model.enable_input_require_grads(); "
        "deepspeed.utils.safe_get_full_fp32_param and safe_get_full_grad to look at values.",
        evidence=("deepspeed.utils.tensor_fragment.safe_get_full_fp32_param",),
    ),
    Fact(
        id="modules_to_save_under_zero3",
        names=(
            "modules_to_save",
            "additional_target",
            "ModulesToSaveWrapper",
            "peft/utils/other.py:update",
            "peft/utils/other.py:_wrap_for_peft",
        ),
        title="PEFT: modules_to_save under DeepSpeed",
        what="Each named module (embed_tokens, lm_head) is copied and trained whole, with all optimizer "
        "states: often more memory than the rest of the adapter. Under ZeRO-3 the copy needs a PEFT that "
        "gathers it, DeepSpeed's hooks fail on the wrapper in some releases (no attribute "
        "ds_grads_remaining), and tied weights are no longer tied.",
        remedy="Current PEFT and DeepSpeed; trainable_token_indices for a few new tokens; without new tokens no "
        "modules_to_save.",
        patches=("zero3_delegating_wrapper",),
        evidence=("peft.utils.other.ModulesToSaveWrapper.update",),
    ),
    Fact(
        id="adapter_loaded_under_zero3",
        names=(
            "load_adapter",
            "PeftModel.from_pretrained",
            "set_peft_model_state_dict",
            "is_trainable",
            "adapter_name_or_path",
            "peft/utils/save_and_load.py:set_peft_model_state_dict",
            "peft/peft_model.py:load_adapter",
        ),
        beside=(
            "zero-3",
            "empty",
            "fails + loading",
            "differs",
            "resuming",
            "adapter + fails",
            "adapter + loading",
        ),
        title="PEFT: an adapter is loaded into a model under DeepSpeed",
        what="Its parameters must exist whole when they are filled: before the engine is made. If they were "
        "made under zero.Init or the engine, their shape is [0] and the file's shapes do not fit; a file "
        "with shape [0] was saved without gathering. Without is_trainable=True the adapter is frozen, and "
        "the optimizer has nothing.",
        remedy="PeftModel.from_pretrained(base, DIRECTORY, is_trainable=True) before prepare or the Trainer; to "
        "merge or to infer, without DeepSpeed.",
        evidence=("peft.PeftModel.load_adapter",),
    ),
    Fact(
        id="merging_partitions",
        names=(
            "merge_and_unload",
            "merge_adapter",
            "unmerge_adapter",
            "export_model",
            "merge_lora",
        ),
        beside=(
            "zero-3",
            "empty",
            "adapter + fails",
            "adapter + differs",
            "whole model",
        ),
        title="PEFT: an adapter is merged",
        what="Merging adds to the weights, and under ZeRO-3 these are empty on every rank: it fails or changes "
        "nothing, unless all parameters are gathered around merging, use and unmerging. Merging needs "
        "base weights that are not quantized, and the base that was trained with (its dtype, its "
        "vocabulary).",
        remedy="After training, in one process without DeepSpeed (no ZeRO-3 config in the export command): base "
        "by from_pretrained, then the adapter, then merge_and_unload.",
        evidence=("https://huggingface.co/docs/peft/accelerate/deepspeed",),
    ),
    Fact(
        id="preparing_for_kbit",
        names=(
            "prepare_model_for_kbit_training",
            "prepare_model_for_int8_training",
        ),
        title="PEFT: prepare_model_for_kbit_training under DeepSpeed",
        what="It freezes the model and casts whatever is not quantized (embedding, norms, lm_head) to fp32, which "
        "costs memory, and gives a model of two dtypes until DeepSpeed casts to the config's. It turns on gradient "
        "checkpointing, reentrant by default through transformers 4.57.",
        remedy="Only for 4 and 8 bits; otherwise freeze by get_peft_model and call enable_input_require_grads(). "
        "With ZeRO-3 leave it out, and load with torch_dtype=bf16 and bnb_4bit_quant_storage=bf16.",
        evidence=("peft.utils.other.prepare_model_for_kbit_training",),
    ),
    Fact(
        id="four_bits_with_zero3",
        names=(
            "load_in_4bit",
            "BitsAndBytesConfig",
            "bnb_4bit_quant_storage",
            "bnb_4bit_compute_dtype",
            "use_qlora",
            "Linear4bit",
            "Params4bit",
            "bitsandbytes/nn/modules.py:forward",
            "bitsandbytes/autograd/_functions.py:forward",
            "bitsandbytes/autograd/_functions.py:matmul_4bit",
            "peft/tuners/lora/bnb.py:forward",
        ),
        beside=(
            "quantized + zero-3",
            "quantized + oom",
            "quantized + memory",
            "quantized + differs",
            "quantized + fails",
            "quantized + loading",
        ),
        title="4 bits (QLoRA) under DeepSpeed",
        what="With ZeRO-0 to 2 each rank holds the whole quantized model on its own GPU. With ZeRO-3 it is "
        "partitioned only if bnb_4bit_quant_storage is the dtype of the other weights (bf16), with transformers "
        "4.45, PEFT 0.13.1, bitsandbytes 0.43.3 or later; from_pretrained loads it whole first.",
        remedy='ZeRO-2 with device_map={"": local_rank} and offload_optimizer none; or ZeRO-3 with '
        "BitsAndBytesConfig(bnb_4bit_quant_storage=torch.bfloat16) and torch_dtype=torch.bfloat16; or "
        "LoRA on bf16 with ZeRO-3.",
        evidence=("https://huggingface.co/docs/peft/accelerate/deepspeed",),
    ),
    Fact(
        id="eight_bits_with_deepspeed",
        names=(
            "load_in_8bit",
            "Linear8bitLt",
            "Int8Params",
            "bitsandbytes/autograd/_functions.py:backward",
            "MatMul8bitLt",
        ),
        title="8 bits under DeepSpeed",
        what="The weights are integers with states beside them. ZeRO-3 cannot partition them. It works with ZeRO-0 "
        "to 2, the model loaded whole on each rank's GPU, and only an adapter trained; ZeRO-3, offload_param and "
        "full fine-tuning do not.",
        remedy='device_map={"": local_rank}, LoRA and ZeRO-2; for ZeRO-3 bf16 without quantization, or 4 bits '
        "with bnb_4bit_quant_storage.",
        evidence=("bitsandbytes.nn.Int8Params",),
    ),
    Fact(
        id="counting_adapter_parameters",
        names=("print_trainable_parameters", "get_nb_trainable_parameters"),
        beside=(
            "empty",
            "zero-3 + parameters",
            "parameters + none",
            "parameters + differs",
            "parameters + wrong",
            "frozen",
        ),
        title="counting parameters under ZeRO-3",
        what="numel() of a partitioned parameter is 0 and ds_numel has its size, which PEFT's "
        "print_trainable_parameters takes. A count of 0 by numel() is harmless; 0 trainable ones with "
        "ds_numel mean that everything is frozen: a loaded adapter without is_trainable, or "
        "target_modules that match nothing.",
        remedy="sum(getattr(p, 'ds_numel', p.numel()) for p in model.parameters() if p.requires_grad), before "
        "deepspeed.initialize.",
        evidence=("peft.PeftModel.get_nb_trainable_parameters",),
    ),
    Fact(
        id="adapter_initialised_from_base",
        names=(
            "use_dora",
            "init_lora_weights",
            "pissa_init",
            "loftq_config",
            "peft/tuners/lora/layer.py:update_layer",
            "peft/tuners/lora/layer.py:pissa_init",
            "peft/tuners/lora/layer.py:dora_init",
            "peft/tuners/lora/dora.py:update_layer",
            "peft/tuners/lora/dora.py:get_weight_norm",
        ),
        title="PEFT: adapters that start from the base weights (PiSSA, OLoRA, DoRA, LoftQ)",
        what="They read (and some change) the base weights when they are made. Under ZeRO-3 these are empty unless "
        "PEFT gathers them, which it does since 0.9 for one kind after another; on many ranks each computes the "
        "same decomposition. DoRA reads them in every forward pass.",
        remedy="A current PEFT; or initialise once without DeepSpeed, save base and adapter, and train from these.",
        evidence=("peft.utils.integrations.gather_params_ctx",),
    ),
    Fact(
        id="adapter_dtype",
        names=(
            "autocast_adapter_dtype",
            "upcast_layernorm",
            "cast_trainable_params_to_fp32",
        ),
        title="the dtype of an adapter's parameters under DeepSpeed",
        what="Since 0.12 PEFT makes adapters in fp32 although the base is in bf16 or fp16. The engine casts them to "
        "the config's dtype; but since DeepSpeed 0.19.2 not in a model that zero.Init has partitioned: the adapters "
        "stay in fp32 there, and 0.19.2 itself cannot gather them together with 16-bit weights (TypeError in the "
        "first step).",
        remedy="get_peft_model(model, config, autocast_adapter_dtype=False) with ZeRO-3; a current TRL does that "
        "by itself.",
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/8072",),
    ),
    Fact(
        id="prompts_under_zero3",
        names=(
            "PrefixTuningConfig",
            "PromptTuningConfig",
            "prompt_encoder",
            "prefix_encoder",
            "pre_seq_len",
            "peft/peft_model.py:_setup_prompt_encoder",
        ),
        beside=(
            "zero-3",
            "saving",
            "resuming",
            "fails",
            "empty",
        ),
        title="prompt and prefix tuning under DeepSpeed",
        what="The word embedding is found by its shape, by ds_shape under ZeRO-3, and read to initialise the "
        "prompts, which current PEFT gathers. What is trained is a small module beside a frozen model, so "
        "that ZeRO divides nearly nothing but the frozen weights (ZeRO-3); P-tuning code of ChatGLM saves "
        "prefix_encoder only.",
        remedy="ZeRO-2 where the model fits; a current PEFT; the base model is loaded by its own files, then the "
        "saved part with strict=False.",
        evidence=("peft.PeftModel._setup_prompt_encoder",),
    ),
    Fact(
        id="adapter_saved_under_zero3",
        names=(
            "LoRA",
            "PEFT",
            "QLoRA",
        ),
        beside=(
            "saving + empty + zero-3",
            "saving + zero-3 + incomplete",
        ),
        title="an adapter that is trained with ZeRO-3 has to be gathered for saving",
        what="Every rank holds a part of the adapter only, and the model's own tensors are empty (shape [0]): "
        "code of a project that calls model.save_pretrained, or torch.save of state_dict(), writes a file "
        "of some KB. It has to be gathered on all ranks, not under `if rank == 0`.",
        remedy="trainer.save_model() of a current transformers; or accelerator.get_state_dict(model) on all "
        "ranks and save_pretrained(…, state_dict=…); zero_to_fp32.py for what the engine has saved; "
        "ZeRO-2, where the adapter is whole.",
        evidence=("peft.utils.save_and_load.get_peft_model_state_dict",),
    ),
)
