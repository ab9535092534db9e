"""What titles and sentences describe, by kind of symptom; what a traceback without its last line shows."""

from __future__ import annotations

from ..phrases import NO_ERROR, phrases
from ..signature import Role, Signature, pull

SIGNATURES = (
    # hangs
    Signature(
        id="experts_diverge",
        title="a mixture of experts hangs under ZeRO: an expert has tokens on some ranks only",
        what="ZeRO-3 gathers an expert's weights, and ZeRO-1 and 2 reduce its gradients, on all ranks together; a "
        "model that loops over the experts that have tokens lets the ranks diverge, and they wait for each other. "
        "Releases of transformers differ in whether they loop over all experts.",
        remedy="ZeRO-3: deepspeed.utils.set_z3_leaf_modules(model, [the class of the MoE block]) before "
        "deepspeed.initialize (accelerate: deepspeed_moe_layer_cls_names). Otherwise another release of transformers "
        "(for Qwen3 MoE 4.51.3 is reported to work), or one whose experts are one tensor.",
        pattern=r"(?:Qwen3-MoE|Qwen3 MoE|Qwen3MoE|Qwen3-Omni|Qwen3 Omni|Qwen3-Next|Qwen3-VL-30B|qwen3_moe|qwen3-moe"
        r"|qwen-moe|Qwen-moe|qwen1\.5-moe|Qwen1\.5-MoE|Qwen-MoE|MoE-A14B|MoE-A2\.7B|-30B-A3B"
        r"|235B-A22B|Mixtral-8x|Mixtral 8x|mixtral-8x|DeepSeek-V[23]"
        r"|MoE model|moe model|MoE training|MoE layer|MoE模型)"
        r"[\s\S]{0,400}(?:(?<![a-z])hang|hung|stuck|(?<!in)stall|freezes\b|卡住|卡死|deadlock)"
        r"|(?:(?<![a-z])hang|stuck|freezes\b|卡住)[^\n]{0,80}(?:Qwen3-MoE|Qwen3 MoE|Qwen3-Omni|qwen3_moe|-30B-A3B"
        r"|235B-A22B"
        r"|Mixtral-8x|MoE model|MoE training)",
        role=Role.POSSIBLE,
        evidence=("https://github.com/hiyouga/LlamaFactory/issues/9222", *pull(5008)),
    ),
    # saving and loading
    Signature(
        id="shard_saved_of_tensor_parallel",
        title="tensor parallelism: the saved file has one rank's shard of the weights",
        what="With AutoTP each rank has 1/tp of the sharded layers. save_16bit_model without ZeRO-3, and "
        "state_dict(), write those of rank 0.",
        remedy="0.16.4 and later: accelerator.get_state_dict(model), or engine._consolidated_16bit_state_dict(), on "
        "all ranks; save_checkpoint writes one file for each rank (mp_rank_…).",
        pattern=r"(?:ensor parallel|ensor Parallel|autotp|AutoTP|tp_size)[^\n]{0,200}(?:only contains|only has "
        r"|only have |only saves"
        r"|only saved|incomplete weights|partial weights|weights are incomplete|half of the weights)"
        r"|(?:saved|save)[^\n]{0,80}(?:only one shard|one rank's shard|only the shard)",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="resuming_does_not_work",
        title="resuming from a checkpoint does not work",
        what="engine.load_checkpoint needs the directory that has the file latest (or tag=), all files of all ranks, "
        "and the same stage, optimizer and number of ranks as when it was saved. The Trainer's checkpoint-N has "
        "global_step… and latest, unless save_only_model was set.",
        remedy="Paste the message for its cause. Another number of ranks: ds_to_universal and load_universal. Weights "
        "only: load_checkpoint(…, load_module_only=True), or start anew from them.",
        pattern=phrases(
            "resume_from_checkpoint |Resume from checkpoint |resume from checkpoint ",
            "is not work|not work|does not work|doesn't work|fails|failed|error",
        )
        + "|"
        + phrases("esuming from |esumming from |esuming from a ", "checkpoint ", "fail|does|doesn|is not|not ")
        + "|"
        + phrases("annot |ailed to |an't |nable to ", "resume |Resume ", "training|Training|from|the training")
        + r"|resume training fail|resuming training fail|save_checkpoint (?:immediately )?followed"
        r"|无法恢复训练|断点续训"
        r"|恢复训练|load_checkpoint (?:fail|doesn't work|does not work|is broken|followed|immediately)",
        role=Role.FAMILY,
    ),
    Signature(
        id="saved_model_is_not_the_trained",
        title="the saved model gives other results than the trained one",
        what="Most likely not all of it was saved or loaded: weights that ZeRO-3 had partitioned (shapes of [0] or "
        "missing), an adapter without its base model, keys with a prefix (module., base_model.) that load_state_dict "
        "with strict=False ignores; or it was loaded in another precision, or is the base model. zero_to_fp32.py of "
        "an old release (the checkpoint has its own copy) can itself give wrong or incomplete weights.",
        remedy="Load strictly, and compare a few weights with the trained ones; from a checkpoint of ZeRO: "
        "zero_to_fp32.py of a current DeepSpeed.",
        pattern=r"(?:model|weights|checkpoint)[^\n]{0,60}(?:after saving|after loading|after converting"
        r"|zero_to_fp32)[^\n]{0,80}"
        r"(?:gibberish|garbage |nonsense|random output|worse than|bad results|poor results|performance drop"
        r"|not the same)|"
        + phrases(
            "saved |loaded |converted |merged ",
            "model ",
            "gives |outputs |generates |produces |performs |is ",
            "gibberish|garbage|nonsense|random|bad|poorly|much worse|not the same|different",
        )
        + "|"
        + phrases(
            "weights |parameters |Weights |Parameters ",
            "are not |were not |is not |don't |do not |didn't ",
            "loaded",
        )
        + r"|保存的模型[^\n]{0,40}(?:乱码|不一致|效果差)|zero_to_fp32(?:\.py)?[^\n]{0,60}(?:wrong|incorrect|different"
        r"|corrupt|not match|missing)",
        role=Role.FAMILY,
    ),
    Signature(
        id="weights_do_not_change",
        title="the weights do not change while training",
        what="Most likely the steps are skipped (fp16 whose gradients overflow, accumulation that is not complete) or "
        "the learning rate is 0 (warm-up, a scheduler of the config); what is looked at is a placeholder (ZeRO-3) or "
        "rounded to 16 bits; or the weights are frozen, not in the optimizer, or were replaced after "
        "deepspeed.initialize.",
        remedy="engine.get_lr(), engine.skipped_steps; engine.backward and engine.step instead of the loss's and the "
        "optimizer's; deepspeed.utils.safe_get_full_fp32_param(param) before and after a step, on all ranks.",
        pattern=phrases(
            "weights |parameters |Weights |Parameters ",
            "are not |were not |is not |don't |do not |didn't ",
            "updat|chang",
        ),
        role=Role.FAMILY,
        evidence=("https://github.com/huggingface/transformers/issues/24860",),
    ),
    Signature(
        id="checkpoint_is_large",
        title="checkpoints are large, or saving takes long",
        what="A ZeRO checkpoint has the optimizer: with Adam in mixed precision 12 bytes per parameter (fp32 weights "
        "and two moments) besides 2 for the weights. Files of zero_to_fp32 are in fp32, twice the size of the model "
        "in 16 bits.",
        remedy="Only the weights: save_only_model=True (Trainer), engine.save_16bit_model; fewer checkpoints "
        "(save_total_limit); exclude_frozen_parameters=True with adapters; zero_to_fp32.py's result .to(bf16).",
        pattern=phrases(
            "checkpoint is |checkpoints are |checkpoint size is |file size is ",
            "too |very |so |extremely |",
            "large|big|huge",
        )
        + "|"
        + phrases("takes |take ", "too |very |so |", "long |much time ", "to save|saving")
        + r"|larger than the original model|twice as large|doubles in size|double the size|twice the size"
        r"|保存的模型(?:太大|很大)|模型大小(?:翻倍|变大)",
        role=Role.FAMILY,
    ),
    # memory
    Signature(
        id="loaded_by_each_rank",
        title="the host's memory is full while the model loads: each rank loads the whole model",
        what="Each rank is a process of its own and loads the model into the host's memory before it is moved, split "
        "or partitioned: ranks per host times the size of the model (twice that if it is cast or loaded from one "
        "file).",
        remedy="ZeRO-3: from_pretrained with a ZeRO-3 config that is active (HfDeepSpeedConfig, TrainingArguments "
        "first) or under deepspeed.zero.Init, from safetensors. init_inference: the model on the meta device and "
        "checkpoint=. ZeRO-1/2: low_cpu_mem_usage=True, the dtype of the file, or load on one rank after another.",
        pattern=r"(?:CPU|cpu|[Hh]ost|RAM|system) ?(?:memory|RAM|mem)\b[^\n]{0,160}(?:num_gpus|number of GPUs"
        r"|number of "
        r"gpus|number of ranks|number of processes|each GPU|each gpu|each process|every process|every rank|each rank"
        r"|more GPUs|multiple GPUs|use 8 gpus|use 8 GPU|with 8 GPU)|"
        + phrases(
            "load |loads |loading |loaded ",
            "model |the model |the checkpoint |the weights ",
            "on each process"
            "|on each GPU|for each GPU|for each gpu|on every rank|for each process|in each process|in every "
            "process|multiple"
            " times|twice|on each rank|separately|into CPU memory twice|into memory for each",
        )
        + "|"
        + phrases("too much |xcessive |so much ", "cpu |CPU |host ", "memory|RAM")
        + r"|separate process for model loading|loaded into memory for each|CPU OOM in|CPU OOM when|cpu OOM when"
        r"|CPU memory OOM"
        r"|CPU memory overflow|[Hh]ost Memory Efficien|CPU内存|cpu内存|内存爆了|内存不足|内存溢出|内存占用过高",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeedExamples/issues/498",),
    ),
    Signature(
        id="memory_of_first_gpu",
        title="one GPU has more memory in use than the others",
        what="Most likely other ranks have a CUDA context or tensors there: torch.load without map_location, a "
        "collective or .cuda() before torch.cuda.set_device(local_rank). Otherwise rank 0 gathers (saving, "
        "evaluation), or pipeline stages that differ.",
        remedy="torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) first; torch.load(…, map_location='cpu'); "
        "nvidia-smi shows which processes are on that GPU.",
        pattern=r"(?:GPU ?0|gpu ?0|[Rr]ank ?0|cuda:0|first GPU|one GPU)[^\n]{0,60}(?:more memory|higher memory"
        r"|much more VRAM"
        r"|much more GPU|extra memory)|"
        + phrases("unbalanced |imbalanced |uneven |Unbalanced |Imbalanced |Uneven ", "GPU |", "memory")
        + r"|emory imbalance|emory unbalanced|显存不均衡|显存分配不均|显存占用不均",
        role=Role.FAMILY,
    ),
    # training
    Signature(
        id="schedule_not_followed",
        title="the learning rate does not follow the schedule that was set",
        what="With a scheduler in the DeepSpeed config, that one counts: WarmupLR rises to warmup_max_lr (0.001 if it "
        'is not given), whatever the optimizer\'s lr is, by a logarithm unless warmup_type is "linear", and then '
        "stays. It steps once per step of the optimizer. accelerate's scheduler steps once for each rank, and "
        "Lightning's once an epoch, unless they are told otherwise. Skipped steps (fp16) do not count.",
        remedy='One scheduler only; "warmup_max_lr" as the optimizer\'s lr, "warmup_type": "linear", WarmupDecayLR '
        "with total_num_steps to fall again; accelerate: num_steps * num_processes; Lightning: interval step.",
        pattern=r"(?:schedul|warmup|Warmup|warm-up|learning rate|learning_rate|lr_)[^\n]{0,80}(?:not working"
        r"|not work as"
        r"|doesn't work|does not work|not respected|not respecting|is ignored|being ignored|overrided|overridden"
        r"|overwritten|not gonna change|never changes|does not change|doesn't change|stays constant|is constant"
        r"|stays the same|keeps constant|not changing|remains constant|not updated|Not Linear|is not linear)"
        r"|not respecting [^\n]{0,20}warmup|strange learning rate|wrong learning rate|incorrect learning rate"
        r"|warmup_max_lr[^\n]{0,60}learning rate|学习率(?:不变|没有变化|异常|一直不变|无法衰减"
        r"|不衰减|没有衰减|不下降|一直是|无法下降)"
        r"|lr_scheduler_type[^\n]{0,40}(?:失效|无效|不生效|没有生效|不起作用|no effect|not effective|not used)",
        role=Role.FAMILY,
        evidence=("https://github.com/huggingface/transformers/issues/22751",),
    ),
    Signature(
        id="batch_size_not_used",
        title="the batch size of the DeepSpeed config is not what the model gets",
        what="DeepSpeed makes batches only if it gets training_data. A loader of the script, accelerate or a Trainer "
        "keeps its own batch_size; the config's numbers then only tell the accumulation and the statistics. In "
        "accelerate's own config file (not a DeepSpeed one) there is no train_micro_batch_size_per_gpu.",
        remedy="The loader's batch_size (per_device_train_batch_size) and train_micro_batch_size_per_gpu the same, or "
        '"auto" where transformers or accelerate fill it in.',
        pattern=r"(?:ignores?|ignoring|overrides?|overwrites?|does not use|doesn't use|not respect\w*)\b[^\n]{0,80}"
        r"(?:train_micro_batch_size_per_gpu|(?<!per_device_)train_batch_size)|(?:train_micro_batch_size_per_gpu|train_batch_size)`?"
        r"[^\n]{0,40}(?:is ignored|has no effect|ignored|not used|no effect|not respected)|[Bb]atch size computation"
        r"|[Ww]hich batch size|batch size (?:is wrong|wrong when)",
        role=Role.FAMILY,
        evidence=("https://github.com/huggingface/accelerate/issues/2298",),
    ),
    Signature(
        id="batch_sampler_without_size",
        title="accelerate: a loader with a batch_sampler of its own has no batch size",
        what="DataLoader(batch_sampler=…) has batch_size None. accelerate of 2023 refuses it even if the config has "
        "train_micro_batch_size_per_gpu; later releases only if it has none.",
        remedy='"train_micro_batch_size_per_gpu": a number in the DeepSpeed config, and accelerate of 2024 or later. '
        "Old ones: set batch_size as an attribute of the sampler, or prepare the loader without the engine.",
        pattern=r"has `None` as batch size",
        evidence=("https://github.com/huggingface/accelerate/pull/2207",),
    ),
    Signature(
        id="gradient_is_none",
        title="gradients under ZeRO: param.grad is None after backward",
        what="ZeRO keeps the gradients of its partitions and releases those of the parameters: param.grad is None "
        "after engine.backward (always with ZeRO-2 and 3), and a norm that is computed from them is 0. They are None "
        "as well of parameters that are frozen or take no part in the loss.",
        remedy="deepspeed.utils.safe_get_full_grad(param), on all ranks, between backward and step; "
        "engine.get_global_grad_norm() after step.",
        pattern=phrases(
            ".grad |.grad` |grad |grads |gradient |gradients ".replace(".", "\\."),
            "is |are ",
            "None|all None|always None",
        )
        + "|"
        + phrases("access |get ", "the gradient|gradients |gradient norm|the grad |gradient of")
        + r"|p\.grad is None|[Nn]o [Gg]radient with [Dd]eep|there is no gradient|grad_norm = 0|grad_norm is 0"
        r"|grad_norm is always 0|grad norm is 0|grad norm is always 0|radMonitor doesn't|outputs all 0s"
        r"|梯度为None|梯度是None|梯度为空",
        role=Role.FAMILY,
    ),
    Signature(
        id="only_one_gpu_used",
        title="fewer GPUs are used than there are",
        what="DeepSpeed uses a GPU per process. Started with plain python there is one process; the launcher starts "
        "as many as it sees GPUs, or as --num_gpus, --include, a hostfile or CUDA_VISIBLE_DEVICES say.",
        remedy="deepspeed --num_gpus N script.py, or torchrun or accelerate launch with N processes.",
        pattern=phrases(
            "nly use |nly uses |nly used |nly runs on |nly running on ",
            "one GPU|1 GPU|a single GPU|one gpu|1 gpu|a single gpu",
        )
        + "|"
        + phrases("not |cannot |can't ", "use |using ", "multiple |multi-|all |both ", "GPUs|gpus")
        + "|other GPUs are idle|only GPU 0|只用了一张|只使用一张|只能用一张",
        role=Role.FAMILY,
    ),
    Signature(
        id="inference_gives_nonsense",
        title="inference with DeepSpeed gives other or meaningless output",
        what="Most likely a model whose kernels or tensor-parallel split DeepSpeed does not fit (a newer architecture "
        "or transformers, replace_with_kernel_inject), fp16 for a model of bf16, padding on the wrong side, or a "
        "state that the kernels keep between batches of other lengths.",
        remedy="do_sample=False; replace_with_kernel_inject=False, then tp_size 1 tell which; the dtype of the model; "
        'padding_side="left". `python -m dsfix list` shows the known wrong results of the installed release.',
        pattern=r"(?:[Dd]eep[Ss]peed|init_inference|kernel inject|replace_with_kernel_inject|AutoTP"
        r"|hybrid engine|ds_model)"
        r"(?![^\n]{0,160}[Cc]onvert)[^\n]{0,160}(?:gibberish|garbage out|nonsense|random output|wrong output"
        r"|incorrect output|different output"
        r"|garbled out|meaningless|wrong results|incorrect results|repeated tokens|inconsistent output|bad output)"
        r"|(?:gibberish|garbage output|nonsense|random output|wrong output|incorrect output"
        r"|garbled output)[^\n]{0,100}"
        r"(?:[Dd]eep[Ss]peed|init_inference|kernel)"
        r"|nference[^\n]{0,60}(?:is|are) (?:different|inconsistent|not the same)[^\n]{0,40}(?:original|Hugging ?[Ff]ace"
        r"|transformers|without)|nference [^\n]{0,30}\bworse [^\n]{0,30}(?:than|when)[^\n]{0,60}(?:Hugging ?[Ff]ace"
        r"|transformers|without [Dd]eep)",
        role=Role.FAMILY,
    ),
    Signature(
        id="loss_does_not_fall",
        title="the loss does not fall, or rises",
        what="Most likely the learning rate (too high; of another global batch size; of a scheduler in the config), "
        "fp16 for a model of bf16, labels that are shifted or masked wrongly, weights that were not loaded, or a "
        "parameter group that is not trained. Otherwise a bug of this DeepSpeed.",
        remedy="The same on one GPU without DeepSpeed tells whether it is DeepSpeed; then fp32, ZeRO-0, no offload "
        'and no "overlap_comm" one by one. `python -m dsfix list` shows the known wrong results of the installed '
        "release.",
        pattern=phrases(
            "loss |Loss ",
            "does not go down|didn't go down|doesn't drop|explod|diverg|keeps increasing|keeps rising"
            "|keeps going up|is increasing"
            "|suddenly|spikes|spike |doesn't go down|not going down|is not going down|plateau|is "
            "stuck|stuck at"
            "|is abnormal|abnormal|too large|too high|is very large|is very high|is extremely|is unusually|is huge",
        )
        + "|"
        + phrases("loss|loss |Loss ", "不下降|不收敛|异常|爆炸|突然|很大|特别大|不降|一直不变")
        + r"|[Ll]oss increases(?! after (?:resum|load|restor|restart))|training diverges"
        r"|training is unstable|training instabilit|not converging|模型不收敛",
        role=Role.FAMILY,
    ),
    Signature(
        id="zero_runtime_exception",
        title="ZeRORuntimeException: a setting or a checkpoint that ZeRO refuses",
        what="Two things raise it: a checkpoint that was saved with another number of ranks, and ZeRO-Offload with an "
        "optimizer of the script.",
        remedy="Checkpoint: ds_to_universal and load_universal, or the same number of ranks. Offload: "
        'DeepSpeedCPUAdam, or "zero_force_ds_cpu_optimizer": false.',
        pattern=r"ZeRORuntimeException",
        role=Role.FAMILY,
    ),
    Signature(
        id="loader_is_not_torchs",
        title="the loader is DeepSpeed's, not torch's: it lacks an attribute",
        what="deepspeed.initialize(training_data=…) returns a DeepSpeedDataLoader, which is no subclass of torch's "
        "DataLoader: its sampler is data_sampler, and batch_size and len() are there.",
        remedy="loader.data_sampler.set_epoch(epoch); or a DataLoader of your own and no training_data.",
        pattern=r"'DeepSpeedDataLoader' object has no attribute",
        evidence=("https://github.com/h2oai/h2o-llmstudio/issues/529",),
    ),
    Signature(
        id="local_rank_taken_for_command",
        title="the launcher's --local_rank is taken for a command",
        what="The deepspeed launcher puts --local_rank=N in front of the script's arguments; a program whose first "
        "argument is a command (swift pt, llamafactory-cli train) does not know it.",
        remedy="deepspeed --no_local_rank; or the program's own launcher (ms-swift: NPROC_PER_NODE, NNODES).",
        pattern=r"KeyError: '--local[-_]rank=|[Uu]nknown command:? ['`\"]?--local[-_]rank",
        evidence=("https://github.com/modelscope/ms-swift/issues/7984",),
    ),
    # wrong until now
    Signature(
        id="gathered_by_global_rank",
        title="torch before 2.3: the backward pass of all_gather takes the global rank for that in its group",
        what="torch.distributed.nn.functional.all_gather in a group that is smaller than the job (sequence "
        "parallelism over some of the ranks) indexes the gradients by the global rank.",
        remedy="torch 2.3 or later; or add up the losses with all_reduce, weighted by their tokens, instead of "
        "gathering them.",
        pattern=r"torch/distributed/nn/functional\.py\", line \d+, in backward\n[^\n]*grad_outputs\[rank\][\s\S]{0,200}"
        r"tuple index out of range",
        affects={"torch": "<2.3"},
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/7672", *pull(7809)),
    ),
    Signature(
        id="pinning_fails",
        title="memory of the host cannot be pinned",
        what="CUDA refused to pin a buffer for offloading. Most likely it is larger than what may be pinned: WSL 2 (a "
        "part of the memory), a container's or ulimit's limit, memory that is full; with some drivers also a size "
        "above some GB.",
        remedy='"pin_memory": false in offload_optimizer and offload_param (slower); ulimit -l unlimited; a newer '
        "driver; smaller sub_group_size or buffer_size.",
        pattern=r", in pin_memory\n[\s\S]{0,400}(?:CUDA error: (?:invalid argument|out of memory|OS call failed"
        r"|resource already|operation not)|cudaHostAlloc|Cannot allocate)",
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/7150",),
    ),
    Signature(
        id="accumulation_overwritten",
        title="accelerate replaces the config's gradient_accumulation_steps",
        what="Accelerator(gradient_accumulation_steps=…) is 1 if it is not given, and older releases of accelerate "
        "write it into the DeepSpeed config.",
        remedy="The same number in Accelerator (or accelerate's config file) and in the DeepSpeed config, or "
        '"auto" there.',
        pattern=r"Updating DeepSpeed's gradient accumulation steps to \d+ from \d+",
        role=Role.POSSIBLE,
        evidence=("https://github.com/yuvalkirstain/PickScore/issues/18",),
    ),
    Signature(
        id="accumulation_miscounted",
        title="gradient accumulation under DeepSpeed gives other results than expected",
        what="The engine counts its own micro-batches and steps at every gradient_accumulation_steps of the config; "
        "accelerate's accumulate() and a Trainer count as well, and both must have the same number. The loss is "
        "divided by that number in engine.backward, so dividing it in the script divides twice; batches of different "
        "numbers of tokens are weighted alike.",
        remedy="One number everywhere; either engine.backward(loss) of the undivided loss, or "
        "scale_wrt_gas=False for a loss that the script divides; the last incomplete window is not stepped.",
        pattern=phrases(
            "ncorrect |rong |roblem with |ssue with |bug in |bug with ", "gradient accumulation|gradient_accumulation"
        )
        + r"|[Gg]radient[ _][Aa]ccumulation[^\n]{0,100}(?:gives worse|worse results|broken|is wrong|incorrect|not work"
        r"|does not match|might be a bug|has issue|different loss|completely different|is ignored|not respected)"
        r"|(?:might be a bug|different)[^\n]{0,60}gradient_accumulation_steps",
        role=Role.FAMILY,
        evidence=("https://github.com/huggingface/accelerate/issues/3552",),
    ),
    Signature(
        id="npu_error",
        title="an error of Ascend's CANN",
        what="It is reported late, like CUDA's. Most likely CANN, torch_npu, torch and the driver are of releases "
        "that do not fit each other, an operator is not supported for this dtype or shape, or the memory is full.",
        remedy="The releases that torch_npu names for this CANN; ASCEND_LAUNCH_BLOCKING=1 names the line; the first "
        "E…: line in the plog.",
        pattern=r"EZ9999: Inner|aicore error|NPU function error|error code is 507\d{3}|EI0002: |EI0006: ",
        role=Role.FAMILY,
    ),
    Signature(
        id="fastgen_config_not_supported",
        title="FastGen: a layer's settings are not supported",
        what="FastGen's kernels are for NVIDIA GPUs from Ampere on, in fp16 or bf16; another accelerator, fp32, or a "
        "size that a kernel does not have is refused here.",
        remedy="dtype fp16 or bf16 on such a GPU; otherwise deepspeed.init_inference, or another server.",
        pattern=r"is not supported by <class 'deepspeed\.inference\.v2\.",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeedExamples/issues/960",),
    ),
    Signature(
        id="fails_with_zero3_only",
        title="ZeRO-3 fails where ZeRO-2 works",
        what="ZeRO-3 partitions the weights too: outside of its module's own call a parameter is an empty placeholder "
        "(shape [0]). Most likely something reads, initialises, resizes, copies or loads weights itself, calls a part "
        "of a module without the module, uses a model that no engine was made for (a reference model, a teacher, a "
        "frozen tower), or loads a quantized model or one with device_map. The ranks must also run the same modules "
        "(MoE, images).",
        remedy="from_pretrained with the ZeRO-3 config active and no load_state_dict of your own; "
        "deepspeed.zero.GatheredParameters around what touches weights; deepspeed.utils.set_z3_leaf_modules; a "
        "current DeepSpeed, transformers and project. If the model fits, ZeRO-2.",
        pattern="(?:"
        + phrases(
            "ero2|ero-2|ero 2|ero_2|eRO2|eRO-2|eRO 2|ERO2|tage 2|tage2|tage-2",
            " has no problem| works| is fine| is ok| can work| can run| runs| can train| is normal| without problem"
            "| without any problem| without issue|没问题|没有问题|正常|可以|不报错|没报错|能跑|能正常|能训练|时正常"
            "|下正常|训练正常| 正常| 可以| 没问题",
        )
        + "|"
        + phrases(
            "works with |works on |work with |fine with |fine on |fine under |switch to |switching to |switched to "
            "|changed to |change to |改用|换成|改成",
            "zero2|zero-2|zero 2|ZeRO2|ZeRO-2|ZeRO 2|Zero2|Zero-2|stage 2|stage2|zero stage 2|ZeRO stage 2|zero_stage2",
        )
        + "|(?:"
        + phrases(
            "use |using |with |With |Using |使用|采用|用",
            "zero2|zero-2|zero 2|ZeRO2|ZeRO-2|ZeRO 2|Zero2|Zero-2|stage 2|stage2|zero stage 2|ZeRO stage 2",
        )
        + r")[^\n]{0,40}(?:work(?:s|ed)?\b|successful|sucessful|run(?:s|ning)? (?:fine|well|ok|normally)|没问题"
        r"|没有问题|正常|可以))(?![\s\S]{0,300}(?:慢|slow))",
        role=Role.FAMILY,
    ),
    Signature(
        id="overflow_reported",
        title="fp16: gradients overflow",
        what="The gradients do not fit into fp16 at this loss scale: the step is skipped, and the scale is halved. In "
        "the first steps, and now and then later, that is how the scale is found. If nearly every step is skipped, the "
        "model or the data is not for fp16 (most models since 2022 were trained in bf16), the learning rate is too "
        "high, or a loss is nan.",
        remedy="Nothing, if it stops. Otherwise bf16 instead of fp16 in config and arguments; "
        '"initial_scale_power" smaller; look at the batch and the loss of a skipped step.',
        pattern=phrases(
            "gives |give |get |got |gets |getting |gradient |grad |always |keeps |fp16 |training |report |reports ",
            "overflow",
        )
        + r"|(?<!stack )(?<!buffer )(?<!memory )(?<!integer )(?:overflow detected|overflow error|overflow warning"
        r"|overflow when|overflow during|overflow in train)"
        r"|OVERFLOW when|OVERFLOW during|"
        + phrases("出现|一直|总是|全是|都是|提示|报", "overflow|OVERFLOW| overflow| OVERFLOW")
        + "|"
        + phrases("overflow|OVERFLOW", "问题|报错|错误")
        + "|梯度溢出|损失溢出",
        role=Role.FAMILY,
    ),
    Signature(
        id="release_makes_the_difference",
        title="a difference between releases of DeepSpeed",
        what="If one release works and another does not, with everything else the same, one of them has a bug, or does "
        "not fit the installed torch, transformers or accelerate.",
        remedy="`python -m dsfix list` shows the known bugs of the installed release, and which of them dsfix fixes in "
        "place; otherwise keep to the release that works, or try the newest.",
        pattern=phrases(
            "downgrade |downgraded |downgrading |rollback |roll back |rolled back |revert |after upgrading "
            "|after updating |since upgrading |after upgrade ",
            "the deepspeed|deepspeed|DeepSpeed|Deepspeed|the DeepSpeed|to deepspeed|to DeepSpeed"
            "|to the latest deepspeed",
        )
        + "|"
        + phrases(
            "orks properly |orks fine |orks well |orked fine |orks correctly |ork fine |orking fine ",
            "with |in |on |using |under ",
            "v0.|deepspeed 0|DeepSpeed 0|deepspeed==0|DeepSpeed==0|deepspeed v0|DeepSpeed v0|Deepspeed 0".replace(
                ".", r"\."
            ),
        )
        + r"|replacing the deepspeed|replacing the DeepSpeed|egression in deepspeed|egression in DeepSpeed|"
        + phrases("降级|回退|降低", "deepspeed|DeepSpeed|Deepspeed|了deepspeed|了DeepSpeed| deepspeed| DeepSpeed")
        + "|"
        + phrases("deepspeed|DeepSpeed|Deepspeed|deepspeed版本|DeepSpeed版本", "降级|降到|回退|降版本"),
        role=Role.FAMILY,
    ),
    Signature(
        id="weights_sent_to_vllm",
        title="generation by vLLM goes wrong after the weights are sent to it",
        what="The trainer gathers each weight (ZeRO-3 has it in partitions), merges adapters, maps its name to vLLM's "
        "and sends it. Most likely some are sent empty, unmerged or under a name that vLLM does not take (multimodal "
        "and MoE models, a release of transformers or vLLM that renamed them), or ranks of several machines gather "
        "differently.",
        remedy="Current releases of the trainer, DeepSpeed and vLLM that were tested together; compare a few weights "
        "and one answer of vLLM before and after the first update, with learning rate 0; ZeRO-2 tells whether it is "
        "the gathering.",
        pattern=r"(?:vLLM|vllm)[^\n]{0,120}(?:权重同步|同步权重|更新权重|权重更新|weight sync|sync weights|sync_weights"
        r"|weight update|update_weights|update weights|syncing weights|weight transfer|load_weights)[^\n]{0,200}"
        r"(?:异常|乱码|重复|garbage|gibberish|nonsense|repeat|diverge|collapse|mismatch|wrong|incorrect|!!!)",
        role=Role.POSSIBLE,
        evidence=("https://github.com/modelscope/ms-swift/issues/9787",),
    ),
    Signature(
        id="optimizer_of_config_counts",
        title="an optimizer of the arguments beside one of the DeepSpeed config",
        what="If the DeepSpeed config has a section optimizer, the engine makes that one, and the Trainer's --optim, "
        "--adafactor or the script's choice is not used, or refused.",
        remedy="Remove the section optimizer from the config; ZeRO with an optimizer that DeepSpeed has not tested: "
        '"zero_allow_untested_optimizer": true, offloaded also "zero_force_ds_cpu_optimizer": false.',
        pattern=r"(?:--adafactor|--optim\b|optim=|--optimizer)[^\n]{0,80}(?:is ignored|is not used|has no effect"
        r"|doesn't get|does not get|n't get it|not passed|is overridden|is overwritten|not respected|不生效)",
        role=Role.POSSIBLE,
        evidence=("https://github.com/huggingface/transformers/issues/11749",),
    ),
    Signature(
        id="checkpointing_and_frozen_inputs",
        title="gradient checkpointing with LoRA: the adapters get no gradient",
        what="Reentrant checkpointing passes gradients only if an input of the layer requires one. With a frozen "
        "embedding none does: the adapters stay as they are, or the loss has no graph. It costs time in any case, for "
        "memory.",
        remedy="model.enable_input_require_grads() before get_peft_model; or gradient_checkpointing_kwargs="
        '{"use_reentrant": False}, with ZeRO-3 only in a current DeepSpeed and torch.',
        pattern=r"enable_input_require_grads|"
        + phrases(
            "gradient checkpointing |gradient_checkpointing |gradient checkpoint |Gradient Checkpoint "
            "|gradient checkpointing, |activation checkpointing ",
            "with LoRA|with lora|and LoRA|and lora|+ LoRA|+ lora|with PEFT|with peft",
        )
        + "|"
        + phrases("LoRA |lora ", "and |with |+ ", "gradient checkpointing|gradient_checkpointing|gradient checkpoint"),
        role=Role.POSSIBLE,
        evidence=("https://github.com/huggingface/peft/issues/1142",),
    ),
    Signature(
        id="adapter_checkpoint_merged",
        title="merging an adapter of a checkpoint into its model",
        what="A checkpoint-N of a Trainer has the adapter (adapter_model.…, adapter_config.json) and, in global_step…, "
        "what is needed to resume; nothing is merged there. Scripts of some projects also need files that are written "
        "only at the end (LLaVA: config.json, non_lora_trainables.bin).",
        remedy="PeftModel.from_pretrained(base, 'checkpoint-N').merge_and_unload().save_pretrained(OUTPUT), without "
        "DeepSpeed, the base in the dtype that it was trained in. If the adapter's file is far too small, it was saved "
        "without gathering: zero_to_fp32.py of the checkpoint.",
        pattern=r"(?:merge|merging)[^\n]{0,40}checkpoint[^\n]{0,40}(?:with lora|with LoRA|lora weights|LoRA weights)"
        r"|merge the lora |merge lora |merge LoRA |merge the LoRA |merging lora |merging LoRA |没有合并lora"
        r"|合并lora|合并LoRA|合并 lora|合并 LoRA",
        role=Role.FAMILY,
        evidence=("https://github.com/haotian-liu/LLaVA/issues/922",),
    ),
    # tracebacks without their last line
    Signature(
        id="cut_in_overflow_check",
        title="an error while the ranks agree on overflow; its message is not in the log",
        what="The step begins with a collective over all ranks, and with what kernels before it reported late. It "
        "cannot be told without the message. Seen here: another rank failed or left (its error is in its own log), an "
        "illegal memory access of an earlier kernel, or memory that is full.",
        remedy="The last line of this traceback, and the first error of all ranks; CUDA_LAUNCH_BLOCKING=1 names the "
        "kernel.",
        pattern=r"(?:self\._overflow_check_and_loss_scale_update\(\)|in has_overflow|in _check_overflow)"
        r"[^\n]*" + NO_ERROR,
        role=Role.FAMILY,
    ),
    Signature(
        id="cut_while_saving",
        title="an error while a checkpoint is written; its message is not in the log",
        what="It cannot be told without the message. Seen here: the disk or the quota is full, the directory cannot "
        "be written or is not shared by the hosts, the host's memory is full, or a state of the optimizer is missing.",
        remedy="The last line of the traceback tells; df -h and free -g on each host while it saves.",
        pattern=r"deepspeed/runtime/engine\.py\", line \d+, in (?:save_checkpoint|_save_checkpoint"
        r"|_save_zero_checkpoint"
        r"|save_16bit_model)\n" + NO_ERROR,
        role=Role.FAMILY,
    ),
    Signature(
        id="cut_while_loading",
        title="an error while a checkpoint is read; its message is not in the log",
        what="It cannot be told without the message. Seen here: the model or the optimizer is not the one that was "
        "saved (other layers, an adapter, other groups), the number of ranks or the stage is another one, a file is "
        "missing or damaged, or torch 2.6 refuses to unpickle an object (weights_only).",
        remedy="The last line of the traceback tells. load_checkpoint(…, load_optimizer_states=False) or "
        "load_module_strict=False show which part it is.",
        pattern=r"deepspeed/runtime/engine\.py\", line \d+, in (?:load_checkpoint|_load_checkpoint"
        r"|_load_zero_checkpoint"
        r"|load_module_state_dict|_get_all_zero_checkpoints)\n" + NO_ERROR,
        role=Role.FAMILY,
    ),
    Signature(
        id="cut_while_importing",
        title="an error while deepspeed is imported; its message is not in the log",
        what="It cannot be told without the message. Seen here: packages that do not fit each other (torch, NumPy, "
        "pydantic, triton too new or too old for this release), a CUDA toolkit that is not found (CUDA_HOME), or a "
        "compiled module for another torch.",
        remedy='The last line of the traceback tells; python -c "import deepspeed" by itself shows it.',
        pattern=r"deepspeed/__init__\.py\", line \d+, in <module>\n" + NO_ERROR,
        role=Role.FAMILY,
    ),
    Signature(
        id="cut_in_backward",
        title="an error in the backward pass; its message is not in the log",
        what="It cannot be told without the message. Seen here: the GPU's memory is full; a graph that is used twice, "
        "a tensor that was modified in place, dtypes that differ, or under ZeRO-3 a parameter that was not gathered "
        "again.",
        remedy="The last line of the traceback tells; a smaller micro-batch shows whether it is the memory.",
        pattern=r"in backward\n[^\n]*(?:scaled_loss\.backward|loss_scaler\.backward|self\.optimizer\.backward"
        r"|self\.engine\.backward)" + NO_ERROR,
        role=Role.FAMILY,
    ),
    Signature(
        id="cut_in_initialize",
        title="an error in deepspeed.initialize; its message is not in the log",
        what="It cannot be told without the message. Seen here: an operator that could not be built or loaded "
        "(FusedAdam, CPUAdam), the GPU's memory (the fp32 copies are made here), a config or an optimizer that is "
        "refused, or the ranks that do not reach each other (NCCL's first collective).",
        remedy="The last line of the traceback tells.",
        pattern=r"deepspeed/__init__\.py\", line \d+, in initialize\n" + NO_ERROR,
        role=Role.FAMILY,
    ),
)
