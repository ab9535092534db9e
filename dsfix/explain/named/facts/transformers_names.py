"""transformers' models under DeepSpeed: how they are made, loaded, resized, and how they generate."""

from __future__ import annotations

from ..fact import Fact

FACTS = (
    Fact(
        id="device_map_with_deepspeed",
        names=("device_map",),
        title="device_map does not go with DeepSpeed",
        what="device_map spreads one model over the devices of one process; with DeepSpeed each rank has one GPU. "
        "With ZeRO-3 from_pretrained refuses it, and accelerate refuses to prepare a model on several devices. With "
        '"auto" every rank uses the same GPUs.',
        remedy='No device_map; for 4 and 8 bits (ZeRO-2) device_map={"": local_rank}. To train what does not fit '
        "one GPU: ZeRO-3, several processes by a launcher.",
        evidence=(
            "transformers.modeling_utils",
            "accelerate.Accelerator.verify_device_map",
        ),
    ),
    Fact(
        id="low_cpu_mem_usage_with_deepspeed",
        names=("low_cpu_mem_usage",),
        title="low_cpu_mem_usage and DeepSpeed",
        what="With ZeRO-3 transformers through 4.50 refuses it; later ones load with little memory by themselves "
        "and ignore the option. With ZeRO-0 to 2 each rank loads the whole model into the host's memory; through "
        "4.50 with it once, without it about twice.",
        remedy="ZeRO-3: leave it out. ZeRO-0 to 2: low_cpu_mem_usage=True, without device_map.",
        evidence=("transformers.modeling_utils.PreTrainedModel.from_pretrained",),
    ),
    Fact(
        id="resizing_embeddings",
        names=(
            "resize_token_embeddings",
            "smart_tokenizer_and_embedding_resize",
            "_resize_token_embeddings",
            "transformers/modeling_utils.py:resize_token_embeddings",
            "transformers/modeling_utils.py:_get_resized_embeddings",
            "transformers/modeling_utils.py:_get_resized_lm_head",
        ),
        title="resize_token_embeddings under ZeRO-3",
        what="transformers gathers the old weight to copy its rows; the new one is whole in some releases, "
        "partitioned in others. Code that then reads weight.shape, or fills new rows with a mean "
        "(smart_tokenizer_and_embedding_resize), works on an empty placeholder unless it gathers. transformers "
        "4.43.0 to 4.43.3 do not resize rightly, those through 4.33.2 take 0 for the vocabulary's size.",
        remedy="deepspeed.zero.GatheredParameters([weight], modifier_rank=0) around what reads or fills rows; or "
        "resize once without DeepSpeed, and save model and tokenizer.",
        evidence=("transformers.modeling_utils._get_resized_embeddings",),
    ),
    Fact(
        id="initialising_weights",
        names=(
            "transformers/modeling_utils.py:_init_weights",
            "transformers/modeling_utils.py:_initialize_weights",
            "transformers/modeling_utils.py:initialize_weights",
            "transformers/modeling_utils.py:smart_apply",
            "transformers/modeling_utils.py:_initialize_missing_keys",
            "transformers/modeling_utils.py:init_weights",
            "transformers/modeling_utils.py:post_init",
        ),
        title="a model's weights are initialised while ZeRO-3 has partitioned them",
        what="Under zero.Init a parameter is empty as soon as its module is made. zero.Init gathers around "
        "module.apply only: an _init_weights that is called otherwise (smart_apply of newer transformers, a model's "
        "own __init__) and indexes a weight, reads its shape or calls an initialiser for matrices fails. "
        "from_pretrained gathers the weights that the checkpoint lacks.",
        remedy="A newer transformers; in own models GatheredParameters(module.parameters(recurse=False), "
        "modifier_rank=0) around it; ZeRO-2 tells whether it is this.",
        evidence=("transformers.modeling_utils._load_pretrained_model",),
    ),
    Fact(
        id="loading_into_partitions",
        names=(
            "_load_state_dict_into_zero3_model",
            "_load_state_dict_into_model",
            "transformers/integrations/deepspeed.py:_load_state_dict_into_zero3_model",
            "transformers/integrations/deepspeed.py:load",
            "transformers/modeling_utils.py:_load_state_dict_into_model",
            "transformers/modeling_utils.py:load",
        ),
        title="from_pretrained under ZeRO-3: rank 0 loads, module by module",
        what="Each module's parameters are gathered, filled on rank 0 and partitioned again. It fails if the "
        "file's shapes are not the model's (another vocabulary size), if the model was made twice under "
        "zero.Init, or if the other ranks do not load the same model at the same time; it is slow on a "
        "slow disk.",
        remedy="All ranks call from_pretrained in the same order; config and file of one model.",
        evidence=("transformers.integrations.deepspeed._load_state_dict_into_zero3_model",),
    ),
    Fact(
        id="dtype_of_engine",
        names=(
            "torch_dtype",
            "model_dtype",
        ),
        beside=(
            "fp16 + differs",
            "bf16 + differs",
            "nan",
            "fails + fp16",
            "fails + bf16",
            "loss + bf16",
            "memory",
        ),
        title="the dtype of the loaded model, and the engine's",
        what="deepspeed.initialize casts all parameters to fp16 or bf16 if the config enables one, whatever "
        "torch_dtype was; the fp32 weights of the optimizer are copies of the cast ones. Without either section "
        "nothing is cast.",
        remedy="The same dtype in torch_dtype and in the config; to train in fp32 neither section, and torch.float32.",
        evidence=("deepspeed.runtime.engine.DeepSpeedEngine._configure_distributed_model",),
    ),
    Fact(
        id="synced_gpus_of_generate",
        names=("synced_gpus",),
        title="generate(synced_gpus=…) under ZeRO-3",
        what="Each forward pass of a ZeRO-3 model gathers weights on all ranks, so that all of them have to "
        "run as many; a rank whose texts end earlier goes on with synced_gpus. generate sets it itself if "
        "transformers knows of ZeRO-3 (HfDeepSpeedConfig is alive). Without it, or if only some ranks "
        "call generate, the job hangs.",
        remedy="synced_gpus=True, as many calls on all ranks, and inputs on all of them; or gather the weights once "
        "and take ZeRO's hooks off meanwhile, as TRL's unwrap_model_for_generation does.",
        evidence=("transformers.generation.utils.GenerationMixin.generate",),
    ),
    Fact(
        id="generate_of_partitioned",
        names=(
            "model.generate",
            "predict_with_generate",
            "module.generate",
            "Seq2SeqTrainer",
            "transformers/trainer_seq2seq.py:prediction_step",
            "transformers/generation/utils.py:generate",
            "transformers/generation/utils.py:_sample",
            "transformers/generation/utils.py:greedy_search",
            "transformers/generation/utils.py:sample",
        ),
        beside=(
            "zero-3",
            "hang",
            "slow",
            "evaluation + generation",
        ),
        title="generating with a model that ZeRO-3 has partitioned",
        what="Every token's forward pass gathers all weights again, so that generate is slow, and it hangs unless "
        "all ranks run as many passes (synced_gpus). A partitioned module of which no engine was made has empty "
        "weights. ZeRO-1 and 2 have none of this.",
        remedy="Weights gathered once, with ZeRO's hooks taken off meanwhile (TRL's unwrap_model_for_generation), "
        "if the model fits one GPU; else synced_gpus=True; generation after training from saved weights (vLLM, "
        "plain transformers); ZeRO-2.",
        evidence=("transformers.trainer_seq2seq.Seq2SeqTrainer.prediction_step",),
    ),
    Fact(
        id="model_spread_for_inference",
        names=(
            "init_empty_weights",
            "load_checkpoint_and_dispatch",
            "dispatch_model",
            "infer_auto_device_map",
        ),
        title="accelerate's loading of large models is for inference without DeepSpeed",
        what="init_empty_weights leaves parameters on the meta device, and load_checkpoint_and_dispatch "
        "spreads a model over the GPUs of one process. DeepSpeed can neither broadcast nor partition meta "
        "parameters, and needs one device for each rank.",
        remedy="ZeRO-3's zero.Init (HfDeepSpeedConfig before from_pretrained) instead, or a real model for "
        "ZeRO-0 to 2; for inference without training no DeepSpeed, or deepspeed.init_inference.",
        evidence=("accelerate.big_modeling",),
    ),
    Fact(
        id="set_tensor_of_partition",
        names=(
            "set_module_tensor_to_device",
            "_load_state_dict_into_meta_model",
            "accelerate/utils/modeling.py:set_module_tensor_to_device",
            "transformers/modeling_utils.py:_load_state_dict_into_meta_model",
        ),
        title="weights are loaded one by one, into a model on the meta device",
        what="This way is taken with low_cpu_mem_usage, device_map or quantization. If the model was made "
        "under zero.Init, its parameters have the shape [0] and nothing fits; otherwise the file's shapes "
        "are not those of the config (vocabulary, another model), or the host or the GPU has no memory "
        "left.",
        remedy="With ZeRO-3 no device_map, no low_cpu_mem_usage and no quantization; else config and weights of "
        "one model.",
        evidence=("accelerate.utils.modeling.set_module_tensor_to_device",),
    ),
    Fact(
        id="skip_init_of_chatglm",
        names=(
            "empty_init",
            "skip_init",
        ),
        title="empty_init and skip_init under ZeRO-3",
        what="Models that make their layers by torch.nn.utils.skip_init (ChatGLM, with empty_init=True) create "
        "them on the meta device, where zero.Init cannot partition them.",
        remedy="empty_init=False in from_pretrained (ChatGLM); or ZeRO-2.",
        evidence=("torch.nn.utils.skip_init",),
    ),
)
