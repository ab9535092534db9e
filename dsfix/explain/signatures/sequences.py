"""Ulysses sequence parallelism, FPDT."""

from __future__ import annotations

from ..signature import Signature, pull

SIGNATURES = (
    Signature(
        id="ulysses_heads_and_ranks",
        title="DistributedAttention: Number of heads must be larger than sequence parallel size",
        what="There must be at least as many heads as ranks. 0.15.4 to 0.16.1 also ask this of the heads that one "
        "rank has, on the way back: 8 heads on 4 ranks fail, too.",
        remedy="DeepSpeed 0.16.2 or later, or 0.15.3; a smaller sequence parallel size.",
        pattern=r"Number of heads \((?:\d+|\{num_heads\})\) must be larger than sequence parallel size",
        affects={"deepspeed": ">=0.15.4,<0.19.7"},
        evidence=pull(6797),
    ),
    Signature(
        id="device_mesh_with_index",
        title="sequence_parallel_size in the config: init_device_mesh refuses 'cuda:0'",
        what="0.15.0 to 0.15.3 pass the name of a device where torch 2.4 and later take only its type.",
        remedy="DeepSpeed 0.15.4 or later (with torch 2.4.1 or later), or torch 2.3.",
        pattern=r"in init_device_mesh[\s\S]*Device type with (?:GPU )?index is not supported",
        affects={"deepspeed": ">=0.15.0,<0.15.4", "torch": ">=2.4"},
        evidence=pull(6614),
    ),
    Signature(
        id="ulysses_of_peft_model",
        title="UlyssesSPAttentionHF.register_with_transformers: a PeftModel is taken for a path",
        what="0.18.1 to 0.18.3 read the config of a model of transformers only, and look for anything else on the hub.",
        remedy="DeepSpeed 0.18.4 or later; or pass the base model, model.get_base_model().",
        pattern=r"in register_with_transformers[\s\S]*AutoConfig\.from_pretrained\(model_name_or_path\)[\s\S]*\bPeft",
        affects={"deepspeed": ">=0.18.1,<0.18.4"},
        evidence=pull(7737),
    ),
    Signature(
        id="ulysses_of_multimodal_model",
        title="UlyssesSPAttentionHF: the config has no num_attention_heads",
        what="Configs of multimodal models keep the sizes of the language model in text_config.",
        remedy="DeepSpeed 0.19.1 or later.",
        pattern=r"sequence_parallel/ulysses_sp\.py[\s\S]*Config' object has no attribute "
        r"'(?:num_attention_heads|hidden_size|num_key_value_heads|num_hidden_layers)'",
        affects={"deepspeed": ">=0.17.0,<0.19.1"},
        evidence=pull(7990),
    ),
    Signature(
        id="fpdt_and_flash_attention",
        title="FPDT attention with flash-attn 2.7 or later",
        what="flash-attn 2.7 has other arguments and fewer results than FPDT expects.",
        remedy="DeepSpeed 0.19.1 or later, or flash-attn below 2.7.",
        pattern=r"sequence/fpdt_layer\.py[\s\S]*"
        r"(?:not enough values to unpack|unexpected keyword argument 'window_size')",
        affects={"deepspeed": "<0.19.1", "flash-attn": ">=2.7"},
        evidence=pull(8022),
    ),
    Signature(
        id="ulysses_without_zero",
        title="Ulysses with stage 0: parallel_state_sp has no get_model_parallel_rank",
        what="The optimizer for bf16 without ZeRO asks for a rank that Ulysses' groups have since 0.18.2 only.",
        remedy="ZeRO-1, 2 or 3, or DeepSpeed 0.18.2 or later.",
        pattern=r"parallel_state_sp' has no attribute 'get_model_parallel_rank'",
        affects={"deepspeed": "<0.18.2"},
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/7833",),
    ),
    Signature(
        id="ulysses_batch_incomplete",
        title="Ulysses: a batch lacks position_ids, or its tensors have different shapes",
        what="UlyssesSPDataLoaderAdapter splits input_ids, position_ids and labels along the sequence: each batch "
        "needs all three, of one shape, and positions of the whole sequence, not of a rank's part.",
        remedy="A collator that adds position_ids (torch.arange(length) per sample; anew for each document of a packed "
        "sequence) and pads all three alike.",
        pattern=r"Borked batch batch\[|Ulysses SP requires `?position_ids"
        r"|'s shape [^\n]{1,60} must match input_ids's shape",
    ),
    Signature(
        id="ulysses_attention_refused",
        title="Ulysses: this attn_implementation is not supported, or is not the model's",
        what="UlyssesSPAttentionHF replaces one attention of transformers: flash attention 2 or 3, sdpa, in newer "
        "releases flex_attention and kernels of the hub; eager is not possible. The name must be the one that the "
        "model is loaded with.",
        remedy='The same attn_implementation ("flash_attention_2" or "sdpa") in from_pretrained and as '
        "core_attn_implementation.",
        pattern=r"attn_implementation isn't currently supported by Ulysses"
        r"|is not a valid attn_implementation\. The choices are|does not match model config attn_implementation"
        r"|Hub kernel attention requires a transformers version",
    ),
    Signature(
        id="sequence_parallel_size_refused",
        title="sequence_parallel_size does not fit the number of ranks",
        what="It must be above 1, and divide the number of ranks.",
        remedy="Start as many ranks as a multiple of it (torchrun, deepspeed), or a smaller size.",
        pattern=r"is less than sequence_parallel_size|sequence_parallel_size must be greater than 1"
        r"|World mesh-size should be divisible by SP_SIZE",
    ),
    Signature(
        id="sequence_groups_missing",
        title="the groups of sequence parallelism are not there, or are made twice",
        what="They are made once per process: by UlyssesSPAttentionHF.register_with_transformers or "
        "initialize_sequence_parallel, before deepspeed.initialize(mpu=…).",
        remedy="Call it once, after init_distributed and before the engine is made, and pass its mpu.",
        pattern=r"sequence (?:data )?parallel group is (?:not|already) initialized|No sequence parallel group found",
    ),
    Signature(
        id="autosp_refuses",
        title="AutoSP does not support this model or set-up",
        what="It needs torch 2.9 or later, torch's scaled_dot_product_attention in the compiled graph, and input_ids "
        "and labels among the inputs.",
        remedy='attn_implementation="sdpa"; otherwise UlyssesSPAttentionHF without AutoSP.',
        pattern=r"AutoSP requires PyTorch|AutoSP currently supports |auto_wrap_model_for_sp: no recognisable",
    ),
)
