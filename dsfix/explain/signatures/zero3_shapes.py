"""ZeRO-3: empty parameters where a full one is needed."""

from __future__ import annotations

from ..signature import Role, Signature

SIGNATURES = (
    Signature(
        id="module_outside_engine",
        title="a weight is empty: most likely part of a ZeRO-3 model runs outside its engine or its hooks",
        what="With ZeRO-3 a parameter is empty until the engine's hooks gather it, in front of the module that owns "
        "it. It is still empty in a reference, reward or teacher model that was not prepared, in a module that is "
        "called directly or by another method than forward, and where one module uses another one's weight; or "
        "the file that was loaded has empty weights, saved without gathering.",
        remedy="Prepare the model as well (accelerator.prepare, deepspeed.initialize), call the engine instead of its "
        "module, or gather with deepspeed.zero.GatheredParameters; a weight that another module uses: "
        "deepspeed.zero.register_external_parameter.",
        # torch's messages for a weight of the shape [0]: embedding, linear, convolution, norms
        pattern=r"'weight' must be 2-D|size mismatch, got input \(\d+\), mat \([\dx]+\), vec \(0\)"
        r"|weight should have at least three dimensions|mat2 must be a matrix, got 1-D tensor"
        r"|weight should contain \d+ elements not 0|must match the existing size \(0\)"
        r"|size mismatch, got \d+, \d+x\d+,0\b|out of bounds for storage of size 0|, weight of size \[0\], expected",
        role=Role.GENERAL,
        evidence=(
            "https://github.com/deepspeedai/DeepSpeed/issues/2746",
            "https://github.com/huggingface/trl/issues/600",
        ),
    ),
    Signature(
        id="empty_weight_in_operation",
        title="an operation meets a weight of size 0, as ZeRO-3 leaves where it has not gathered one",
        what="In the forward pass: most likely the module runs outside its engine or its hooks (a reference model "
        "that was not prepared, a module that is called directly or by another method than forward). In the backward "
        "pass: two backward passes through one graph (retain_graph), or reentrant checkpointing; this is what the "
        "patch is for.",
        remedy="Prepare the model, call the engine, or gather with deepspeed.zero.GatheredParameters. Backward: one "
        "engine.backward of the sum of the losses.",
        pattern=r"exceeds dimension size \(0\)|must match the size of tensor b \(0\)|got weight of shape \[0\]"
        r"|but expected shape compatible with \[0\]|broadcast to indexing result of shape \[0\]"
        r"|got \[0\] but expected shape compatible with|output with shape \[0\] doesn't match the broadcast shape"
        r"|(?i:zero[- ]?(?:stage[- ]?)?3)[^\n]{0,60}output with shape \[1\] doesn't match the broadcast shape",
        patches=("zero3_second_backward_fetch",),
        role=Role.POSSIBLE,
    ),
    Signature(
        id="size_mismatch_with_deepspeed",
        title="sizes that do not match under DeepSpeed",
        what="With ZeRO-3 most likely a size of 0: a weight is used where the hooks have not gathered it, or a "
        "checkpoint was saved from or is loaded into a partitioned model. Otherwise another model, or a resized "
        "vocabulary.",
        remedy="The line with the two sizes tells which; `python -m dsfix explain` the whole traceback.",
        pattern=r"size mismatch[^\n]*(?:[Zz]e[Rr][Oo].?(?:stage.?)?3|[Dd]eep[Ss]peed)",
        role=Role.FAMILY,
    ),
    Signature(
        id="placeholders_in_checkpoint",
        title="the file has empty weights: a ZeRO-3 model was saved without gathering",
        what="Under ZeRO-3 the parameters of a rank are empty placeholders, of the shape [0], in old releases [1]. "
        "state_dict() or save_pretrained of the bare model saved them instead of the weights.",
        remedy="If the training's checkpoint (global_step…) exists: `python zero_to_fp32.py . OUTPUT` in its "
        'directory. To save: "stage3_gather_16bit_weights_on_model_save": true and trainer.save_model or '
        "engine.save_16bit_model; with accelerate save_pretrained(…, state_dict=accelerator.get_state_dict(model)).",
        pattern=r"copying a param with shape torch\.Size\(\[0\]\) from checkpoint"
        r"|found shape torch\.Size\(\[0\]\) in the checkpoint|vocab size of the LoRA weight \(?0\b"
        r"|copying a param with shape torch\.Size\(\[1\]\) from checkpoint, the shape in current model is "
        r"torch\.Size\(\[\d+, ",
        role=Role.GENERAL,
        evidence=(
            "https://github.com/huggingface/transformers/issues/20082",
            "https://github.com/huggingface/peft/issues/1710",
        ),
    ),
    Signature(
        id="weights_not_loaded_under_zero_init",
        title="from_pretrained under zero.Init: no weight is loaded, because the model's shapes are [0]",
        what="The model was partitioned while it was made, and transformers does not know it, so that it compares the "
        "checkpoint with empty placeholders. With ignore_mismatched_sizes it goes on with random weights. Most likely "
        "deepspeed.zero.Init around from_pretrained without an active HfDeepSpeedConfig.",
        remedy="dschf = HfDeepSpeedConfig(config) before from_pretrained, kept as long as the model, or "
        "TrainingArguments first; no zero.Init of one's own around it, and no ignore_mismatched_sizes.",
        pattern=r"found shape torch\.Size\(\[[1-9][^\n]{0,60} in the checkpoint and torch\.Size\(\[0\b",
        role=Role.GENERAL,
        evidence=("https://github.com/intel/ipex-llm/issues/11093",),
    ),
    Signature(
        id="loading_into_partitioned_model",
        title="the model's weights are empty: ZeRO-3 has partitioned it before they are loaded",
        what="deepspeed.zero.Init, or transformers' from_pretrained while a ZeRO-3 config is active, leaves empty "
        "placeholders. load_state_dict compares their shape [0] with the file's.",
        remedy="Load before the model is partitioned, or with from_pretrained; for a single module within "
        "deepspeed.zero.GatheredParameters(params, modifier_rank=0). A DeepSpeed checkpoint: engine.load_checkpoint. "
        "To use a trained model elsewhere, make it without the ZeRO-3 config, in another process.",
        pattern=r"from checkpoint, the shape in current model is torch\.Size\(\[0\]\)"
        r"|torch\.Size\(\[\d+, \d+\]\) from checkpoint, the shape in current model is torch\.Size\(\[1\]\)"
        r"|whose dimensions in the model are torch\.Size\(\[0\]\)|which has shape torch\.Size\(\[0\]\)",
        role=Role.GENERAL,
        evidence=(
            "https://github.com/deepspeedai/DeepSpeed/issues/3574",
            "https://github.com/Lightning-AI/pytorch-lightning/issues/18648",
        ),
    ),
    Signature(
        id="integers_require_gradients",
        title="an integer tensor is to require a gradient",
        what="Most likely quantized weights (GPTQ, AWQ, 4 or 8 bits), which are integers and cannot be trained: the "
        "script sets requires_grad on all weights (full fine-tuning), or zero.Init of ZeRO-3 makes parameters of them "
        "anew.",
        remedy="Freeze the quantized weights and train adapters only (peft: prepare_model_for_kbit_training, LoRA), "
        "with ZeRO-2, or for ZeRO-3 current transformers, accelerate and bitsandbytes with bnb_4bit_quant_storage in "
        "the dtype of the model; or load the model unquantized.",
        pattern=r"nly Tensors of floating point and complex dtype can require gradients",
        evidence=("https://github.com/TIGER-AI-Lab/TIGERScore/issues/2",),
    ),
    Signature(
        id="quantized_model",
        title="a model in 4 or 8 bits (QLoRA) does not fit the way DeepSpeed handles weights",
        what="Quantized weights are integers that only their own layers can use. ZeRO-3 gathers them as ordinary "
        "weights, and releases of transformers, accelerate or bitsandbytes that are too old let DeepSpeed move or "
        "cast them.",
        remedy="ZeRO-2, or for ZeRO-3 current releases of transformers, accelerate and bitsandbytes, and "
        "bnb_4bit_quant_storage in the dtype of the model.",
        pattern=r"(?:to|half|float|cuda)(?:\(\))?`? is not supported for `?(?:4-bit|8-bit|quantized)"
        r"|mat2 shapes cannot be multiplied \(\d+x\d+ and 1x\d{6,}\)",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="model_made_before_zero3",
        title="the model was made before the ZeRO-3 config was known",
        what="transformers' from_pretrained partitions a model while it loads if a ZeRO-3 config is active, and "
        "accelerate expects that. The model was made before TrainingArguments(deepspeed=…), or loaded in 4 or 8 bits "
        "by a release that does not partition such a model.",
        remedy="TrainingArguments first, then from_pretrained. QLoRA: current releases of transformers, accelerate and "
        "bitsandbytes, or ZeRO-2.",
        pattern=r"Model was not initialized with `Zero-3`",
        evidence=("https://github.com/huggingface/peft/issues/2014",),
    ),
    Signature(
        id="initializing_partitioned_weight",
        title="a weight with fewer than 2 dimensions is initialized as a matrix",
        what="With ZeRO-3 most likely a weight that zero.Init has partitioned, whose shape is [0] outside "
        "GatheredParameters: an _init_weights that accesses the weights of other modules. Otherwise a bias or a norm.",
        remedy="A newer transformers; in your own code initialize under deepspeed.zero.GatheredParameters(weight, "
        "modifier_rank=0), or in the module's own __init__.",
        pattern=r"Fan in and fan out can not be computed for tensor with fewer than 2 dimensions",
        role=Role.POSSIBLE,
        evidence=("https://github.com/huggingface/transformers/issues/28808",),
    ),
    Signature(
        id="zero_attributes_missing",
        title="a parameter has no ds_… attribute: ZeRO-3 does not know it",
        what="ZeRO-3 gives each parameter its attributes (ds_id, ds_tensor, ds_status) in deepspeed.initialize or "
        "zero.Init. Most likely the parameter was added or replaced afterwards (adapters, resized embeddings, a "
        "converted layer), belongs to a model that was not prepared, or a copy of a module is used.",
        remedy="Change the model before deepspeed.initialize, or under deepspeed.zero.Init; prepare every model that "
        "is used.",
        pattern=r"object has no attribute 'ds_(?!opt_|grads_remaining)\w+'",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="weights_not_gathered_on_save",
        title="ZeRO-3: the config does not gather the weights for saving",
        what="The weights are partitioned, and stage3_gather_16bit_weights_on_model_save is false.",
        remedy='"stage3_gather_16bit_weights_on_model_save": true (accelerate: zero3_save_16bit_model); or '
        "save_checkpoint and `python zero_to_fp32.py . OUTPUT` in its directory.",
        pattern=r"Cannot get 16bit model weights because"
        r"|stage3_gather_16bit_weights_on_model_save[^\n]* is (?:[Ff]alse|not)",
    ),
    Signature(
        id="empty_tensor_indexed",
        title="a tensor without elements is indexed",
        what="With ZeRO-3 most likely a weight that is partitioned, thus empty, outside of its module's hooks. "
        "transformers 4.57 and 5.0 do it within from_pretrained: they zero the row of an embedding's padding_idx "
        "(Gemma 3, BERT and others). Otherwise an empty batch.",
        remedy="Another release of transformers; ZeRO-2; or load the model before the ZeRO-3 config is active (before "
        "TrainingArguments, without zero.Init). Own code: deepspeed.zero.GatheredParameters around the access.",
        pattern=r"index 0 is out of bounds for dimension 0 with size 0",
        role=Role.POSSIBLE,
        evidence=(
            "https://github.com/huggingface/transformers/issues/41762",
            "https://github.com/huggingface/transformers/issues/43596",
        ),
    ),
)
