"""Saved checkpoints: loading, converting, changing the number of ranks."""

from __future__ import annotations

from ..phrases import phrases
from ..signature import Role, Signature, pull

SIGNATURES = (
    Signature(
        id="weights_only_load",
        title="torch 2.6 loads only weights, but the file contains other objects",
        what="Since torch 2.6 torch.load rejects objects that are not tensors. DeepSpeed's checkpoints contain some, "
        "and so do the random states saved by transformers.",
        remedy="DeepSpeed 0.16.0 or later for its checkpoints. For files that you trust: "
        "torch.load(…, weights_only=False), or TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1.",
        pattern=r"Unsupported global: GLOBAL deepspeed\."
        r"|Weights only load failed(?![^\x04]{0,900}Unsupported operand (?:118|60|123)\b)",
        patches=("checkpoint_weights_only", "zero_to_fp32_weights_only"),
        affects={"torch": ">=2.6"},
        role=Role.GENERAL,
    ),
    Signature(
        id="zero_to_fp32_copy_weights_only",
        title="zero_to_fp32.py as a script: torch 2.6 loads only weights, but the checkpoint contains other objects",
        what="Through 0.15.4 zero_to_fp32 uses torch.load's default, which torch 2.6 changed to weights_only=True. "
        "save_checkpoint writes a copy of it into the checkpoint's directory, which an upgrade of DeepSpeed does not "
        "change. It does not import dsfix by itself, and dsfix patches it if it is the installed release's.",
        remedy="python -m dsfix run python zero_to_fp32.py . OUTPUT; for a copy from another release python -m dsfix "
        "run python -m deepspeed.utils.zero_to_fp32 . OUTPUT. In 0.15.3 and 0.15.4 OUTPUT is a directory and must "
        "exist. Without dsfix, for your own checkpoint: TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 in its environment.",
        pattern=r'zero_to_fp32\.py", line \d+, in <module>[\s\S]*Weights only load failed',
        affects={"deepspeed": "<0.16.0", "torch": ">=2.6"},
        evidence=pull(6751),
    ),
    Signature(
        id="zero_to_fp32_devices",
        title="zero_to_fp32: the ranks' partitions are on several devices",
        what="The script joins partitions that it should have loaded to the CPU; they are on the GPUs that saved "
        "them. Most likely an old or a changed copy of the script (since 0.4.2 it passes map_location), or code of "
        "one's own that calls its functions.",
        remedy="python -m deepspeed.utils.zero_to_fp32 . OUTPUT with a current DeepSpeed, or torch.load(…, "
        "map_location='cpu') in the copy.",
        pattern=r"zero_to_fp32\.py[\s\S]*Expected all tensors to be on the same device",
    ),
    Signature(
        id="zero_to_fp32_counts",
        title="zero_to_fp32: the partitions do not have the elements, or the stage, that the script expects",
        what="Most likely an old copy of the script: through 0.9.5 it knows the stages 2 and 3 only, and in 0.5.3 it "
        "assumes another alignment of ZeRO-2's partitions. save_checkpoint leaves the copy of its own release. "
        "Otherwise the files are not of one step.",
        remedy="python -m deepspeed.utils.zero_to_fp32 . OUTPUT with a current DeepSpeed, instead of the copy.",
        pattern=r"unknown zero stage \d|consumed \d+ numels out of \d+ - something is wrong",
        role=Role.POSSIBLE,
        evidence=(
            "https://github.com/deepspeedai/DeepSpeed/pull/3936",
            "https://github.com/deepspeedai/DeepSpeed/pull/1380",
        ),
    ),
    Signature(
        id="another_world_size",
        title="the checkpoint was saved with a different number of ranks",
        what="The optimizer's state is partitioned over the data-parallel ranks and must be loaded by as many. MoE "
        "with sequence parallelism: through 0.18.3 the checkpoint names a wrong number.",
        remedy="Convert it: python -m deepspeed.checkpoint.ds_to_universal --input_folder … --output_folder …, and "
        '"checkpoint": {"load_universal": true}. Or load with load_optimizer_states=False; 0.12 undoes that in the '
        "next step, unless dsfix's zero_load_without_optimizer is applied.",
        pattern=r"used a DP world size of \d+ but the current world size is",
        affects={"deepspeed": ">=0.12.0"},
    ),
    Signature(
        id="checkpoint_writer_roles",
        title="a checkpoint writer without data_parallel needs ranks that only ZeRO-3 or a model-parallel unit has",
        what="checkpoint.writer in the config does not set how data-parallel ranks share the writing; with ZeRO-0 to "
        "ZeRO-2, without a model-parallel unit and without MoE, the writer does not know its rank.",
        remedy='Set "data_parallel": "replica" in checkpoint.writer.',
        pattern=r"'UniversalParallelInfo' object has no attribute 'dp_rank'",
        affects={"deepspeed": ">=0.17.1"},
    ),
    Signature(
        id="mixed_checkpoint_directory",
        title="zero_to_fp32 finds a different number of files than the checkpoint records",
        what="The directory contains files of two checkpoints with different numbers of ranks, or not all ranks have "
        "saved (nodes without a shared file system).",
        remedy="Use the directory of a single step (global_step…) with the files of all nodes.",
        pattern=r"_optim_states\.pt' under .* but found \d+ files",
        affects={"deepspeed": ">=0.12.0"},
    ),
    Signature(
        id="universal_checkpoint_not_of_adam",
        title="universal checkpoints support only optimizers with Adam's two moments",
        what="ds_to_universal reads exp_avg and exp_avg_sq of every parameter. SGD, Adagrad etc. have a different "
        "state: it fails with a KeyError and writes nothing that can be loaded.",
        remedy="Resume with the same number of ranks, without load_universal; or change the number of ranks with the "
        "weights only: zero_to_fp32 and a new optimizer.",
        pattern=r"in extract_zero_shards[\s\S]*KeyError: 'exp_avg'",
        affects={"deepspeed": ">=0.12.0"},
    ),
    Signature(
        id="zero_to_fp32_of_bf16_optimizer",
        title="zero_to_fp32 does not support checkpoints of BF16_Optimizer",
        what='bf16 with ZeRO-1 and data_types.grad_accum_dtype "fp32", through 0.17.5 also without ZeRO, uses an '
        "optimizer whose partitions zero_to_fp32 cannot merge.",
        remedy="Use engine.save_16bit_model; for fp32 weights load the checkpoint into an engine and call "
        "deepspeed.utils.safe_get_full_fp32_param for each parameter.",
        pattern=r"bf16_zero_pp_rank_\d+_mp_rank_\d+_optim_states\.pt is not a zero checkpoint",
        affects={"deepspeed": ">=0.12.0"},
    ),
    Signature(
        id="zero_to_fp32_shared_parameters",
        title="zero_to_fp32 leaves out parameters",
        what="Most likely tied weights (lm_head and the embedding): the optimizer has one of them, and until 0.9.0 the "
        "other name is left out; 0.9.0 and 0.9.1 restore it incompletely. Frozen parameters and buffers that are not "
        "persistent are left out as well, by older releases. The checkpoint has the copy of zero_to_fp32.py of the "
        "release that saved it.",
        remedy="python -m deepspeed.utils.zero_to_fp32 . OUTPUT with a current DeepSpeed; for a checkpoint of before "
        "0.9.0 set the missing name to the tied one (model.tie_weights() after loading with strict=False).",
        pattern=r"(?:zero_to_fp32|convert_zero_checkpoint|deepspeed_zero_stage_[123]|deepspeed_stage_[123])[^\n]{0,80}"
        r"(?:misses|missing|ignores|skips|lacks|loses)[^\n]{0,30}(?:param|layer|weight|key)"
        r"|issing weight param[^\n]{0,40} (?:deepspeed|DeepSpeed)[- _]|issing params after [^\n]{0,30}zero_to_fp32"
        r"|(?:Zero|ZeRO|zero)[ -]?[12] (?:Fails to Save All|fails to save all)",
        role=Role.POSSIBLE,
        affects={"deepspeed": "<0.9.2"},
        evidence=(*pull(3033), *pull(3407)),
    ),
    Signature(
        id="not_a_zero_checkpoint",
        title="zero_to_fp32: there is no such directory",
        what="It needs the directory that has the file latest, or -t TAG, and in global_step… a file …_optim_states.pt "
        "of each rank with ZeRO's partitions. Most likely the path is the one of global_step… itself, relative to "
        "another directory, or latest names a step that was removed.",
        remedy="The path of the directory above global_step…. Without ZeRO: the weights are "
        'torch.load("global_step…/mp_rank_00_model_states.pt", weights_only=False)["module"].',
        pattern=r"FileNotFoundError: Directory '[^'\n]*global_step[^'\n]*' doesn't exist",
        role=Role.GENERAL,
    ),
    Signature(
        id="converters_need_layer_files",
        title="a converter looks for layer_… files, which this checkpoint does not have",
        what="Only a PipelineModule saves a file per layer (layer_…-model_…-model_states.pt), which "
        "deepspeed_to_megatron, deepspeed_to_transformers and gpt-neox's converters read. Without pipeline "
        "parallelism (--no-pipeline-parallel, pipe-parallel-size 0) all weights are in mp_rank_…_model_states.pt.",
        remedy="A converter for such files, or save once more from the same weights with a PipelineModule. With one "
        'rank of tensor parallelism torch.load("mp_rank_00_model_states.pt")["module"] has all weights.',
        pattern=r"transformer_file_map\[[\s\S]{0,120}KeyError: \(\d+, \d+\)|[Cc]heckpoints? [^\n]{0,40}"
        r"no longer saved layer-by-layer",
        role=Role.POSSIBLE,
        evidence=("https://github.com/EleutherAI/gpt-neox/issues/750",),
    ),
    Signature(
        id="resuming_an_adapter",
        title="resuming the training of an adapter with DeepSpeed",
        what="engine.load_checkpoint is strict by default: a checkpoint that has only the adapter's or the trained "
        "weights lacks keys. transformers passes load_module_strict=False for a PeftModel since 4.38. A "
        "checkpoint-N with the adapter's file alone, without global_step…, has no optimizer to resume.",
        remedy="A current transformers and PEFT with the checkpoint-N that has global_step…; in a script "
        "engine.load_checkpoint(…, load_module_strict=False). Otherwise start anew from the adapter: "
        "PeftModel.from_pretrained(base, DIR, is_trainable=True).",
        pattern=phrases("lora |Lora |LoRA |LORA |peft |PEFT |adapter |Adapter ", "resume|resuming|断点续训|恢复训练")
        + "|"
        + phrases(
            "resume |resuming |Resume |Resuming |断点续训|resume training |resuming training |resume training of a ",
            "lora|LoRA|LORA|peft|PEFT|adapter",
        )
        + r"|(?:lora|LoRA|Lora)[^\n]{0,12}断点续训"
        r"|[Rr]esum\w+[^\n]{0,200}\n[^\n]{0,100}\bbase_model\.model\.model\.[\w.]+\.weight\b"
        r"|resume_from_checkpoint[\s\S]{0,1500}Error\(s\) in loading state_dict for Peft"
        r"|继续训练[\s\S]{0,300}Error\(s\) in loading state_dict for PeftModel",
        role=Role.POSSIBLE,
        evidence=("https://github.com/ymcui/Chinese-LLaMA-Alpaca/issues/464",),
    ),
    Signature(
        id="mmengine_checkpoint",
        title="MMEngine, XTuner: a checkpoint cannot be resumed or loaded by the DeepSpeed strategy",
        what="With this strategy iter_N.pth is a directory, made by engine.save_checkpoint, which load_checkpoint "
        "takes as the tag, with the files of all ranks. Most likely it is a file (saved without the optimizer, "
        "converted, or of another strategy), or the model, the number of ranks or the trained parameters have "
        "changed; frozen parameters that were left out need DeepSpeed 0.13.2 or later.",
        remedy="Resume from the directory, with the same config and number of ranks. From a file start anew with its "
        "weights: load them into the model before the strategy wraps it (XTuner: pretrained_pth of the model).",
        pattern=r"(?:mmengine|xtuner/engine)/_strategy/deepspeed\.py\", line \d+, in (?:resume|load_checkpoint)\n"
        r"|mmengine/runner/_flexible_runner\.py\", line \d+, in load_or_resume\n",
        role=Role.FAMILY,
        evidence=("https://github.com/bytedance/Sa2VA/issues/138",),
    ),
    Signature(
        id="checkpoint_on_several_nodes",
        title="several nodes: each rank saves its files on its own node",
        what="save_checkpoint is called on all ranks, and each writes its part; zero_to_fp32 and loading need the "
        "files of all nodes in one directory. Without a shared file system they are spread over the nodes; the file "
        "latest and the model's states are written by some ranks only.",
        remedy="A directory on a file system that all nodes share, or copy the files of all nodes into one directory "
        'on every node. "checkpoint": {"use_node_local_storage": true} (0.7.5 and later) writes on each node what it '
        "needs to resume there.",
        pattern=r"(?:opy|ync|ather|erge)[^\n]{0,40} (?:optimizer states|checkpoint)[^\n]{0,200}(?:from each node"
        r"|to each node"
        r"|to all nodes|from all nodes|to \*\*all nodes|of all nodes|to every node|on every node|on all nodes)"
        r"|(?:checkpoints?|save state|saving state|save_state)[^\n]{0,40}(?: on multi-?nodes?\b| on multi nodes?\b"
        r"| in multi-node| with multi-node| with multiple nodes| on several nodes| on two nodes| across nodes)"
        r"|多机[^\n]{0,30}保存模型",
        role=Role.FAMILY,
        evidence=("https://github.com/stanford-crfm/mistral/issues/48",),
    ),
    Signature(
        id="saving_checkpoint_fails",
        title="saving a checkpoint under DeepSpeed fails",
        what="Most likely the script saves on rank 0 only: engine.save_checkpoint, accelerator.save_state and "
        "gathering ZeRO-3's weights are for all ranks. Otherwise the disk is full or not shared by the hosts, an "
        "object in the state cannot be pickled, or a state of the optimizer is missing.",
        remedy="Call them outside of `if is_main_process`; only what follows is for rank 0. df -h; the last line of "
        "the traceback tells.",
        pattern=phrases(
            "heckpoint |model |state ",
            "saving fails|saving failed|save fails|save failed|saving error|save error|save problem|saving problem"
            "|saving failure",
        )
        + "|"
        + phrases("aving |ave |avings ", "Checkpoint |checkpoint ", "Fail|fail")
        + r"|ailed to save optimizer|ailed to save the optimizer"
        + r"|"
        + phrases("rror |ails |ailed |ug ", "when |while |at ", "saving |save ", "optimizer|the optimizer|state")
        + "|"
        + phrases("保存checkpoint|保存ckpt|保存检查点", "报错|出错|失败|时报错|时失败|的时候报错|就报错"),
        role=Role.FAMILY,
        evidence=("https://github.com/minosvasilias/simple_grpo/issues/2",),
    ),
    Signature(
        id="weights_out_of_zero3",
        title="getting a model's weights out of ZeRO-3",
        what="Under ZeRO-3 state_dict() has placeholders: each rank holds a part of each weight.",
        remedy='With "stage3_gather_16bit_weights_on_model_save": true, on all ranks: engine.save_16bit_model(DIR), '
        "trainer.save_model, accelerator.get_state_dict(model). From a checkpoint, in fp32: zero_to_fp32.py. A single "
        "parameter: deepspeed.zero.GatheredParameters, or safe_get_full_fp32_param.",
        pattern=r"reconstructed for saving|returns some placeholder"
        r"|odel saving (?:in|with|under) (?:the )?(?:Zero|ZeRO|zero|stage)[ -]?(?:[Ss]tage[ -]?)?3"
        r"|(?:"
        + phrases(
            "get |extract |gather |obtain ",
            "the full |the complete |the whole |the trained |full |complete ",
            "model|weights|state_dict",
        )
        + r")[^\n]{0,60}(?i:zero.?3|stage.?3)",
        role=Role.FAMILY,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/872",),
    ),
    Signature(
        id="zero_to_fp32_fails",
        title="zero_to_fp32 fails",
        what="Most likely the directory: it needs the file latest (or -t TAG) and the …_optim_states.pt files of all "
        "ranks. Otherwise the script is of another release than torch (weights_only since torch 2.6), a class in the "
        "checkpoint cannot be imported where it runs, files are incomplete, or the host's memory is full.",
        remedy="The last line of the traceback tells. python -m deepspeed.utils.zero_to_fp32 DIR OUTPUT with a current "
        "DeepSpeed, with the project's code in PYTHONPATH.",
        pattern=r"zero_to_fp32(?:\.py)?[^\n]{0,160}(?:reporting the following error|\berrors?\b|fails?\b|failed"
        r"|n't work"
        r"|not work|cannot convert|can't|unable|报错|失败)|(?:nable to|annot|an't|ailed to)[^\n]{0,60}zero_to_fp32",
        role=Role.FAMILY,
        evidence=("https://github.com/bytedance/HLLM/issues/10",),
    ),
    Signature(
        id="save_hooks_get_no_weights",
        title="accelerate: a save hook gets no weights under DeepSpeed",
        what="With DeepSpeed save_state lets the engine save the model, and the hooks of "
        "register_save_state_pre_hook get an empty list: weights.pop() fails. They run only if save_state is called on "
        "all ranks.",
        remedy="In the hook `if weights: weights.pop()`, and accelerator.unwrap_model for each model; current scripts "
        "of diffusers do so. Or no hook: the engine's checkpoint has the weights.",
        pattern=r"in save_model_hook\n[^\n]*weights\.pop|weight pop from empty list|in hooks is empty"
        r"|save_model_hook[\s\S]{0,300}IndexError: pop from empty list",
        role=Role.POSSIBLE,
        evidence=("https://github.com/kamalkraj/e5-mistral-7b-instruct/issues/12",),
    ),
    Signature(
        id="saving_under_zero3",
        title="how to save a model that is trained with ZeRO-3",
        what="Under ZeRO-3 each rank has a part of each weight: save_pretrained of it alone writes empty weights, and "
        "on rank 0 only it hangs or is incomplete.",
        remedy='"stage3_gather_16bit_weights_on_model_save": true (accelerate: zero3_save_16bit_model), and on all '
        "ranks: accelerator.unwrap_model(model).save_pretrained(DIR, is_main_process=accelerator.is_main_process, "
        "save_function=accelerator.save, state_dict=accelerator.get_state_dict(model)). Or engine.save_checkpoint on "
        "all ranks, and zero_to_fp32.py.",
        pattern=r"(?m:^)(?=[^\n]{0,300}(?i:zero.?3|zero_stage: ?3|stage.?3))[^\n]{0,300}?(?:"
        + phrases("how should I |how to |how do I |how can I |How should I |How to |How do I |How can I ", "save ")
        + r"|如何保存模型|怎么保存模型|保存模型的方式)",
        role=Role.FAMILY,
        evidence=("https://github.com/huggingface/accelerate/issues/1238",),
    ),
    Signature(
        id="zero_to_fp32_output_directory",
        title="zero_to_fp32.py writes a directory of several files",
        what="Since 0.15.3 its second argument is a directory, which gets pytorch_model.bin or, in shards, "
        "pytorch_model-0000….bin with an index; before it was a file.",
        remedy="zero_to_fp32.py CHECKPOINT DIRECTORY, and from_pretrained(DIRECTORY); --max_shard_size 1000GB for one "
        "file.",
        pattern=r"zero_to_fp32[\s\S]{0,600}Parent directory \S+ does not exist"
        r"|several bin files[^\n]{0,80}zero_to_fp32|zero_to_fp32[^\n]{0,120}(?:several|multiple) (?:bin )?files",
        affects={"deepspeed": ">=0.15.3"},
        evidence=("the source of 0.15.3",),
    ),
)
