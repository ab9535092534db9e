"""Files of checkpoints that are missing, incomplete, or of another kind or model."""

from __future__ import annotations

from ..signature import Role, Signature

SIGNATURES = (
    Signature(
        id="no_checkpoint_to_resume",
        title="no checkpoint to resume from at this path",
        what="With DeepSpeed, transformers resumes from the global_step… in the directory that it is given, and there "
        "is none. Most likely the path is wrong: the output directory instead of its checkpoint-N, relative to another "
        "directory, or on the disk of another host. Otherwise the directory has weights only (save_only_model, a "
        "final or a downloaded model), from which nothing can be resumed.",
        remedy="resume_from_checkpoint=the checkpoint-N that has a global_step…, on every host. Without one start from "
        "the weights: their directory as the model's name, and no resume_from_checkpoint.",
        pattern=r"Can't find a valid checkpoint at|No valid checkpoint found in output directory"
        r"|\[deepspeed\] failed to resume from checkpoint",
        role=Role.GENERAL,
        evidence=("https://github.com/huggingface/open-r1/issues/553",),
    ),
    Signature(
        id="partitions_instead_of_model",
        title="the path is DeepSpeed's global_step…, which has no model file",
        what="global_step… has the weights and the optimizer in partitions, one file per rank.",
        remedy="`python zero_to_fp32.py . OUTPUT` in the directory above makes the model file; to resume, name the "
        "directory above.",
        pattern=r"Error no file named [^\n]*global_step\d",
    ),
    Signature(
        id="not_a_model_directory",
        title="the directory has no model file",
        what="from_pretrained looks for model.safetensors or pytorch_model.bin. Most likely the path is wrong (the "
        "output directory instead of its checkpoint-N), or saving was interrupted. Otherwise the directory has an "
        "adapter, or a global_step… of DeepSpeed, as weights were not gathered on saving.",
        remedy="List the directory. adapter_config.json: load the base model, then PeftModel.from_pretrained. "
        "global_step…: `python zero_to_fp32.py . OUTPUT` there makes the model file.",
        pattern=r"Error no file named pytorch_model\.bin|Error no file named model\.safetensors"
        r"|Error no file named diffusion_pytorch",
        role=Role.GENERAL,
    ),
    Signature(
        id="file_damaged",
        title="a file of weights is incomplete or not what it should be",
        what="Most likely the download or the save was interrupted, the disk is full, or the file is a Git LFS "
        "pointer of a few lines. Several ranks that write one file do this, too. Or the file has another format: "
        "torch.load cannot read a safetensors file (invalid load key).",
        remedy="Compare the file's size with the source's and fetch it again (git lfs pull); save again. A safetensors "
        "file: safetensors.torch.load_file, or convert it.",
        pattern=r"PytorchStreamReader failed|Error while deserializing header|invalid load key, "
        r"|MetadataIncompleteBuffer|HeaderTooLarge|unpickling stack underflow|Unsupported operand (?:118|60|123)\b",
        role=Role.GENERAL,
    ),
    Signature(
        id="weights_not_loaded_by_transformers",
        title="transformers could not read a file of weights, for a reason of its own",
        what="transformers' old message for any error in torch.load. Most likely the file is incomplete (a download, a "
        "Git LFS pointer); otherwise the host's memory is full, as each rank loads the whole file, or torch refuses "
        "its objects (weights_only).",
        remedy="The first error of this traceback tells. Compare the file's size with the source's; free -g while it "
        "loads; safetensors files, which are not loaded whole.",
        pattern=r"Unable to load weights from pytorch checkpoint file",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/5250",),
    ),
    Signature(
        id="optimizer_groups_differ",
        title="the checkpoint's optimizer has other parameter groups than this job's",
        what="Most likely what is trained has changed: frozen layers, LoRA, weight decay groups, another optimizer, "
        "another model or another ZeRO stage. KeyError 'param_groups': the file is not an optimizer's state, as "
        "DeepSpeed saves it in partitions.",
        remedy="Resume with the same model, groups and config; or load the weights only (load_optimizer_states=False, "
        "load_module_only=True). With DeepSpeed use engine.load_checkpoint or accelerator.load_state.",
        pattern=r"doesn't match the size of optimizer's group"
        r"|loaded state dict has a different number of parameter groups"
        r"|KeyError\(?:? ?'param_groups'",
        role=Role.POSSIBLE,
        evidence=("https://github.com/littlepure2333/MindBridge/issues/4",),
    ),
    Signature(
        id="state_dict_does_not_fit",
        title="the checkpoint's weights do not fit the model",
        what="size mismatch: most likely another model size, or a vocabulary that was resized on one side. Missing "
        "and unexpected keys: prefixes of wrappers (module., _forward_module., base_model.model.), an adapter without "
        "its base, or tied weights. The shape [0]: of the file, it was saved under ZeRO-3 without gathering; of the "
        "model, ZeRO-3 has partitioned it.",
        remedy="Make the model as it was when it was saved (resize_token_embeddings, the adapter's config); strip the "
        "prefix; zero_to_fp32 for DeepSpeed's files; with ZeRO-3 load under deepspeed.zero.GatheredParameters.",
        pattern=r"Error\(s\) in loading state_dict for|size mismatch for \S+: copying a param with shape"
        r"|Missing key\(s\) in state_dict|[Mm]issing keys? (?:while|when) (?:resum|load)ing",
        role=Role.FAMILY,
    ),
    Signature(
        id="keys_of_file",
        title="KeyError: a file of weights has other names than the code expects",
        what='zero_to_fp32 and save_16bit_model write the weights alone, without a "state_dict", "model" or '
        '"module" around them, with the names of the trained model: base_model.model. of an adapter, module. of a '
        "wrapper.",
        remedy="Print the file's keys; take the file itself as the state dict; rename, or load it into the same "
        "wrapper (get_peft_model).",
        pattern=r"KeyError: ['\"](?:state_dict|module|model|model_state_dict"
        r"|(?:base_model|model|module|transformer|lm_head)\."
        r"(?![\w.]*\d\.[\w.]*(?:k_proj|v_proj|\.key|\.value)\.(?:weight|bias))[\w.]+)['\"]",
        role=Role.POSSIBLE,
        evidence=(
            "https://github.com/hiyouga/LlamaFactory/issues/496",
            "https://github.com/daooshee/QuadPrior/issues/2",
        ),
    ),
    Signature(
        id="saved_on_gpu",
        title="a file of weights was saved on a GPU that does not exist here",
        what="torch.load puts tensors where they were saved.",
        remedy="torch.load(…, map_location='cpu').",
        pattern=r"Attempting to deserialize object on (?:a )?CUDA device",
    ),
    Signature(
        id="process_group_pickled",
        title="a checkpoint contains a process group, which cannot be saved",
        what="Something that is saved refers to an object with a group of torch.distributed: most likely the client "
        "state of save_checkpoint, a hyperparameter or a callback's state holds an engine, an optimizer or a config of "
        "DeepSpeed, or a model that refers to one; otherwise torch.save of such an object itself.",
        remedy="Save their state_dict instead, or save with engine.save_checkpoint and without them in client_state; "
        "Lightning: save_hyperparameters(ignore=[…]).",
        pattern=r"cannot pickle ['`\"]?torch\._C\._distributed_c10d\.ProcessGroup",
        role=Role.POSSIBLE,
        evidence=("https://github.com/Lightning-AI/pytorch-lightning/issues/17369",),
    ),
    Signature(
        id="not_a_deepspeed_checkpoint",
        title="Lightning: the path is not a checkpoint of DeepSpeed",
        what="With this strategy a checkpoint is a directory with the files of all ranks. Most likely the path is a "
        "single file, saved by another strategy or converted, or a directory above or below the checkpoint's.",
        remedy="The directory that ModelCheckpoint made (with checkpoint/ and latest in it). To start from a single "
        "file load its weights into the model, without ckpt_path.",
        pattern=r"path is not a valid DeepSpeed checkpoint",
        role=Role.POSSIBLE,
        evidence=("https://github.com/Lightning-AI/pytorch-lightning/issues/20453",),
    ),
    Signature(
        id="model_states_missing",
        title="load_checkpoint finds no *_model_states.pt in the checkpoint's directory",
        what="The directory or the tag is another one, or the checkpoint is incomplete: save_checkpoint ran on rank 0 "
        "only, was interrupted, or the files are on another host.",
        remedy="load_checkpoint(DIR, TAG): DIR has the file latest, DIR/TAG the files of all ranks. Every rank must "
        "call save_checkpoint (accelerator.save_state).",
        pattern=r"assert len\(self\.ckpt_list\) > 0|in get_sd_loader\n\s*return MegatronSDLoader",
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/3377",),
    ),
    Signature(
        id="adapter_of_zero3_not_loaded",
        title="an adapter cannot be loaded or merged",
        what="If it was trained with ZeRO-3, most likely its weights were saved without gathering and have no "
        "elements: adapter_model is a few KB, or of shapes [0]. Otherwise the file is of another rank r, base model "
        "or release of PEFT, or damaged.",
        remedy="Save with the Trainer, or accelerator.get_state_dict on all ranks, and "
        '"stage3_gather_16bit_weights_on_model_save": true. From a checkpoint of the engine: zero_to_fp32.py, load '
        "the result into get_peft_model's model, save_pretrained.",
        pattern=r"(?m:^)(?=[^\n]{0,200}(?:[Ll]o[Rr][Aa]|LORA))(?=[^\n]{0,200}(?i:zero.{0,3}3|deepspeed))[^\n]{0,200}?"
        r"(?:合并模型|模型合并|合并失败|模型导出|导出问题|合并报错|合并权重|merge error|merge fail|merging fails"
        r"|be merged"
        r"|存储adapter|保存adapter|保存lora)"
        r"|peft/peft_model\.py\", line \d+, in (?:load_adapter|from_pretrained)\n(?![\s\S]*\w(?:Error|Exception)\b)",
        role=Role.FAMILY,
        evidence=("https://github.com/codefuse-ai/MFTCoder/issues/8",),
    ),
    Signature(
        id="as_if_not_trained",
        title="the model that was trained with DeepSpeed answers as if it were not trained",
        what="Most likely not the trained weights were saved or loaded: the base model or another checkpoint, an "
        "adapter that was not loaded or is empty (ZeRO-3), keys with a prefix that strict=False skips, or another "
        "prompt template than in training. Otherwise the training itself: too few steps, skipped steps (fp16), "
        "labels.",
        remedy="Compare a few saved weights with the base model's; load strictly; the template of training. ZeRO-3: "
        '"stage3_gather_16bit_weights_on_model_save": true, or zero_to_fp32.py of a current DeepSpeed.',
        pattern=r"(?:推理|预测|生成|inference|回答)[^\n]{0,40}(?:没咋经过训练|没经过训练|没有经过训练|没训练过|和没训练|没有效果"
        r"|完全不一样|回答的都为空|回答都为空|输出都为空|结果都为空)|微调后生成乱码|训练后生成乱码|微调后推理乱码|微调后输出乱码"
        r"|as if it (?:was|were) not trained|like it was never trained",
        role=Role.FAMILY,
        evidence=("https://github.com/hiyouga/LlamaFactory/issues/2868",),
    ),
    Signature(
        id="logits_without_vocabulary",
        title="a tensor has no elements where a maximum is taken; in generation: logits of a vocabulary of 0",
        what="In generation the head's weight is empty: most likely ZeRO-3 has partitioned it and the module is used "
        "outside of its own forward, the hybrid engine does not fit the model, or it was loaded from a file that was "
        "saved without gathering. Otherwise an empty batch.",
        remedy="Print lm_head.weight.shape where the model is loaded and before generate. DeepSpeed-Chat: without "
        "--enable_hybrid_engine; the file of the step before it saved with gathering.",
        pattern=r"argmax\(\): Expected reduction dim -?\d+ to have non-zero size",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/4226",),
    ),
    Signature(
        id="converter_of_gpt2",
        title="Megatron-DeepSpeed: the converter is for GPT-2, and the model is another one",
        what="deepspeed_to_transformers.py uses transformers' converter of Megatron's GPT-2: learned positions, one "
        "fused attention weight, no gated feed-forward layer. A LLaMA has rotary positions and other shapes.",
        remedy="A converter for that architecture.",
        pattern=r"convert_megatron_gpt2_checkpoint[\s\S]{0,600}KeyError: ",
        role=Role.GENERAL,
    ),
    Signature(
        id="latest_absent",
        title="engine.load_checkpoint: the directory has no file latest, so nothing is loaded",
        what="It warns and returns None; the frameworks then raise, or the job goes on with the weights that it has. "
        "Most likely the path is something else than a DeepSpeed checkpoint (a Hugging Face model or its name on the "
        "Hub, an adapter, a single file), or it is global_step… itself, whose parent has latest. Otherwise it is on "
        "the disk of another host, or saving was interrupted.",
        remedy="Name the directory that has latest and global_step…, or give the tag, too. Weights in Hugging Face's "
        "format are loaded by from_pretrained, not resumed from: without ckpt_path (Lightning) or "
        "resume_from_checkpoint.",
        pattern=r"Unable to find latest file at",
        role=Role.GENERAL,
    ),
)
