"""Tensor parallelism: AutoTP for inference and for training."""

from __future__ import annotations

from ..signature import Role, Signature, pull

_REPLACE = r"deepspeed/module_inject/replace_module\.py"


SIGNATURES = (
    Signature(
        id="autotp_language_model",
        title="AutoTP of a model without lm_head: no attribute 'language_model'",
        what="0.15.2 and 0.15.3 take a model that has neither lm_head nor embed_out for one of vision and language.",
        remedy="DeepSpeed 0.15.4 or later, or 0.15.1.",
        pattern=rf"{_REPLACE}[\s\S]*object has no attribute 'language_model'",
        affects={"deepspeed": ">=0.15.2,<0.15.4"},
        evidence=pull(6650),
    ),
    Signature(
        id="autotp_text_config",
        title="AutoTP of a model with vision_config (git-base): no attribute 'text_config'",
        what="0.15.2 and 0.15.3 expect a text_config in every config that has a vision_config.",
        remedy="DeepSpeed 0.15.4 or later, or 0.15.1.",
        pattern=rf"{_REPLACE}[\s\S]*object has no attribute 'text_config'",
        affects={"deepspeed": ">=0.15.2,<0.15.4"},
        evidence=pull(6688),
    ),
    Signature(
        id="autotp_bias_gathered",
        title="AutoTP training: saving or gathering a layer with a bias: tuple index out of range",
        what="Gathering a layer's shards reads a second dimension of its bias, which has one.",
        remedy="DeepSpeed 0.17.0 or later.",
        pattern=r"module_inject/layers\.py\", line \d+, in gather_params[\s\S]*IndexError: tuple index out of range",
        affects={"deepspeed": ">=0.16.4,<0.17.0"},
        evidence=pull(7257),
    ),
    Signature(
        id="autotp_metadata_of_zero3",
        title="tensor-parallel layers + ZeRO-3 (hybrid engine): tuple index out of range in _mark_uc_metadata",
        what="A layer notes its shape for universal checkpoints, and ZeRO-3 has emptied it. DeepSpeed-Chat's actor "
        "(hybrid engine with ZeRO-3) fails in deepspeed.initialize.",
        remedy="DeepSpeed 0.19.6 or later, or 0.18.8.",
        pattern=r"in _mark_uc_metadata[\s\S]*IndexError: tuple index out of range",
        affects={"deepspeed": ">=0.18.9,<0.19.6"},
        evidence=pull(8270),
    ),
    Signature(
        id="autotp_printing_fused_weight",
        title="printing an AutoTP model: too many values to unpack",
        what="The description of a layer expects a weight of two dimensions; a fused one has three.",
        remedy="DeepSpeed 0.16.5 or later; do not print the model.",
        pattern=r"module_inject/layers\.py\", line \d+, in extra_repr[\s\S]*too many values to unpack",
        affects={"deepspeed": ">=0.16.3,<0.16.5"},
        evidence=pull(7109),
    ),
    Signature(
        id="autotp_printing_without_weight",
        title="printing an AutoTP model: UnboundLocalError, extra_repr_str",
        what="The description of a layer without a weight is not set.",
        remedy="DeepSpeed 0.16.9 or later; do not print the model.",
        pattern=r"in extra_repr[\s\S]*local variable 'extra_repr_str'",
        affects={"deepspeed": ">=0.16.4,<0.16.9"},
        evidence=pull(7254),
    ),
    Signature(
        id="autotp_one_rank",
        title="an AutoTP layer on one rank: no attribute 'tp_world_size'",
        what="Layers that are made without a group of ranks do not set their number.",
        remedy="DeepSpeed 0.17.2 or later; with one rank leave tensor parallelism out.",
        pattern=r"object has no attribute 'tp_world_size'",
        affects={"deepspeed": ">=0.16.4,<0.17.2"},
        evidence=pull(7379),
    ),
    Signature(
        id="autotp_meta_tensor_left",
        title="init_inference of a model on the meta device: a layer has not been loaded",
        what="AutoTP loads a checkpoint into the layers that it knows by name: Falcon's since 0.12.5, the norms of T5 "
        "and Mistral since 0.13.0, those of Qwen 2 and the rotary embedding of Phi-3 128k since 0.14.5. What it does "
        "not know stays on the meta device.",
        remedy="A DeepSpeed that knows the model; or load the model with its weights, not on the meta device, and "
        "leave checkpoint= out.",
        pattern=r"deepspeed/inference/engine\.py[\s\S]*Cannot copy out of meta tensor",
        role=Role.GENERAL,
        evidence=(*pull(4783), *pull(4958), *pull(5765)),
    ),
    Signature(
        id="autotp_decoder_layer_order",
        title="AutoTP of Persimmon, or of Falcon's own code: mat1 and mat2 shapes cannot be multiplied",
        what="AutoTP does not know that the outputs of these layers' `dense` are parts of a sum, and divides it the "
        "other way. With an injection_policy that names it the model runs, but its fused query_key_value is divided in "
        "the order of Baichuan's, and the output is wrong.",
        remedy="No tensor parallelism for this model. DeepSpeed 0.13.2 to 0.13.4 divide the weight rightly, with such "
        "a policy.",
        pattern=r"(?:modeling_persimmon|modelling_RW)\.py[\s\S]*module_inject/layers\.py[\s\S]*"
        r"mat1 and mat2 shapes cannot be multiplied"
        r"|ersimmon[^\n]{0,80}(?:tp_size|[Tt]ensor.?parallel|[Aa]utoTP|init_inference)",
        affects={"deepspeed": ">=0.12.6"},
        evidence=pull(4721),
    ),
    Signature(
        id="autotp_falcon_heads",
        title="AutoTP of Falcon-40B: a shape is invalid for the size of its input",
        what="Through 0.12.2 the number of key heads of Falcon's layers is not divided by the ranks.",
        remedy="DeepSpeed 0.12.3 or later (0.13.0 where the ranks' parts are uneven).",
        pattern=r"deepspeed/inference/engine\.py[\s\S]*modeling_falcon\.py[\s\S]*"
        r"shape '\[[^\]\n]*\]' is invalid for input of size",
        affects={"deepspeed": "<0.13.0"},
        evidence=(*pull(4654), *pull(4712)),
    ),
    Signature(
        id="autotp_uneven_split",
        title="AutoTP: split_sizes do not sum to the size of a weight",
        what="Through 0.12.6 each rank's part of a weight is computed from the number of key heads, and rounded down: "
        "where a dimension is no multiple of it, the parts are too small together.",
        remedy="DeepSpeed 0.13.0 or later; or a number of ranks that divides the number of key heads and every size.",
        pattern=r"deepspeed/module_inject/[\s\S]*split_with_sizes expects split_sizes to sum exactly to",
        affects={"deepspeed": "<0.13.0"},
        evidence=pull(4697),
    ),
    Signature(
        id="inference_checkpoint_in_bf16",
        title="init_inference in bf16 from a checkpoint: BFloat16 != Half in a linear layer",
        what="Through 0.13.1 linear layers that a checkpoint is loaded into are made in fp16, whatever dtype is given.",
        remedy="DeepSpeed 0.13.2 or later, or dtype=torch.half.",
        pattern=r"deepspeed/module_inject/layers\.py[\s\S]*to have the same dtype, but got: "
        r"(?:c10::)?BFloat16 != (?:c10::)?Half",
        affects={"deepspeed": "<0.13.2"},
        evidence=pull(4044),
    ),
    Signature(
        id="autotp_fused_layout",
        title="AutoTP: the layout of a fused query, key and value weight is not known or not divisible",
        what="A fused weight is split in one of a few layouts, chosen by the name of the layer's class; CodeGen's "
        "needs key heads that 4 times the ranks divide.",
        remedy="Another tp_size, or another inference engine for the model.",
        pattern=r"unknown fused_qkv_type|codgen autoTP requires num_kv_heads",
    ),
    Signature(
        id="tensor_parallel_training_fails",
        title="training with AutoTP (tensor_parallel in the config) fails",
        what="AutoTP for training exists since 0.16.4 and goes with ZeRO-0, 1 and 2. The model must be the whole one "
        "on each rank (ZeRO-3's partitioned loading does not go with it), the ranks of a group must get the same "
        "batches, and layers that AutoTP does not know by their names are not split. Releases up to 0.18 had bugs in "
        "saving, biases and ranks' groups.",
        remedy="The last line of the traceback tells; a current DeepSpeed, transformers and accelerate; "
        "tensor_parallel.autotp_size as a divisor of the heads and of the ranks.",
        pattern=r"ds_tensor_parallel_size (?:=|>)? ?[2-9][\s\S]{0,600}(?:Traceback|报错|error)"
        r"|AutoTP training [^\n]{0,40}(?:fails?\b|error|not work|bug|报错)"
        r"|autotp_size[^\n]{0,60}(?:fails?\b|error|not work|报错)"
        r"|(?:failure|fails|error) when using auto tensor parallel",
        role=Role.FAMILY,
        evidence=("https://github.com/OpenRLHF/OpenRLHF/issues/1134",),
    ),
    Signature(
        id="autotp_for_a_model",
        title="AutoTP for an architecture that is not in its list",
        what="AutoTP needs no code for a model: it splits linear layers and sums the outputs of those whose names it "
        "finds (o_proj, down_proj, dense …). Experts, fused weights and layers of other names are not split, or "
        "wrongly.",
        remedy="A current DeepSpeed; injection_policy={Layer: ('attention.output', 'mlp.output')} with the layers "
        "whose output is summed, and the result compared with one GPU; otherwise another inference engine (vLLM).",
        pattern=r"upport AutoTP (?:for|of|on) |upport autoTP for |upport for AutoTP |AutoTP does not support"
        r"|AutoTP doesn't support"
        r"|AutoTP support for|AutoTP is not supported|ensor [Pp]arallel [Nn]ot [Ee]ffect"
        r"|Inference Engine supported model"
        r"|oes DeepSpeed +support \w+[^\n]{0,40}(?:nference|ensor parallel)",
        role=Role.FAMILY,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/7277",),
    ),
)
