"""What texts describe that have no error: titles and sentences about a symptom."""

from __future__ import annotations

from ..phrases import phrases
from ..signature import Role, Signature, pull

SIGNATURES = (
    Signature(
        id="nodes_do_not_meet",
        title="a job on several nodes does not start: the ranks wait for each other",
        what="Each node must start its own ranks. Most likely the script was started on one node only (Lightning's "
        "num_nodes, torchrun and accelerate do not start the others; the deepspeed launcher does, by ssh); otherwise "
        "MASTER_ADDR or its port cannot be reached from the others, or NCCL takes a wrong network interface.",
        remedy="torchrun --nnodes N --node_rank I --master_addr ADDR on every node, or the deepspeed launcher with a "
        "hostfile, or srun. `nc -vz ADDR PORT` from the other nodes; NCCL_SOCKET_IFNAME, NCCL_DEBUG=INFO.",
        pattern=r"(?:find|reach|see|detect|connect to) the other node|(?:find|reach|connect to) the second node"
        r"|(?i:\b(?:2|two|multiple|several|multi)[ -]?(?:nodes?|machines?)\b)[^\n]{0,120}(?:it stucks|stucks in"
        r"|gets stuck"
        r"|is stuck|hangs at|will hang|hangs in|just hangs|hang forever)"
        r"|(?:it stucks|gets stuck|is stuck|just hangs)[^\n]{0,120}(?:multi-node|multiple nodes|two nodes|2 nodes)"
        r"|multi-?node[^\n]{0,80}(?:training hangs|training stucks|job hangs)",
        role=Role.POSSIBLE,
        evidence=("https://github.com/facebookresearch/fast3r/issues/38",),
    ),
    Signature(
        id="job_stops_without_error",
        title="the job stops or waits without an error",
        what="Without a message the ranks most likely wait for each other or for something outside: a lock of a build "
        "that was killed (at Loading extension module), the network or P2P between the GPUs (at the first "
        "collective), ranks that have diverged (later), rank 0 that saves, tokenizes or downloads alone.",
        remedy="py-spy dump --pid PID on each rank shows where; remove ~/.cache/torch_extensions; NCCL_DEBUG=INFO, "
        "NCCL_P2P_DISABLE=1; the same number of batches and the same branches on each rank.",
        pattern=r"training hangs|training freezes|training stucks|training froze|process hangs|process freezes"
        r"|program hangs|program freezes|program stucks|script hangs|script freezes|code hangs|code freezes"
        r"|code stucks"
        r"|it just hangs|just freezes|it freezes|it stucks|no response for |nothing happens after"
        r"|without any error (?:message|log)|stuck forever|keeps hanging|没有任何反应也不报错"
        r"|训练一直卡住不动|程序一直卡住不动",
        role=Role.FAMILY,
    ),
    Signature(
        id="launcher_args_of_pdsh",
        title="deepspeed --launcher_args with pdsh",
        what="Through 0.8.0 only the launchers of MPI take them; the one of pdsh, which is the default, ignores them.",
        remedy="DeepSpeed 0.8.1 or later; or PDSH_SSH_ARGS_APPEND and pdsh's other variables.",
        pattern=r"(?:PDSH|pdsh)[^\n]{0,120}launcher_args|launcher_args[^\n]{0,120}(?:PDSH|pdsh)",
        affects={"deepspeed": "<0.8.1"},
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/2802",),
    ),
    Signature(
        id="visible_devices_ignored",
        title="deepspeed launcher: CUDA_VISIBLE_DEVICES is ignored or not understood",
        what="The launcher sets the variable for each rank itself. Of the one that is set it takes numbers only (no "
        "UUIDs of GPUs or MIG), and only for one node without --include, --exclude, --num_gpus, --num_nodes and "
        "hostfile.",
        remedy="deepspeed --include localhost:2,3 instead of the variable; or torchrun, which leaves it alone.",
        pattern=r"CUDA_VISIBLE_DEVICES (?:is|was|are) (?:not (?:parsed|respected|working|used|recognized)|ignored"
        r"|overwritten)|ignor\w+ (?:the )?`?CUDA_VISIBLE_DEVICES|but ignoring it because one or several of --include"
        r"|CUDA_VISIBLE_DEVICES[^\n]{0,40}(?:isn't being respected|isn't (?:correctly )?inherited|does not work"
        r"|doesn't work|has no effect|not work with)",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="lora_weights_empty",
        title="ZeRO-3: an adapter's weights look empty",
        what="Nothing is wrong with that by itself: under ZeRO-3 each parameter's local tensor has no elements except "
        "while its module runs; the whole shape is in ds_shape. A saved adapter must not be empty: then it was "
        "written without gathering.",
        remedy="To look at it: with deepspeed.zero.GatheredParameters(model.parameters()). To save: "
        "trainer.save_model or accelerator.get_state_dict(model) with stage3_gather_16bit_weights_on_model_save, "
        "current peft.",
        pattern=r"empty lora weight|empty LoRA weight|(?:lora|LoRA|adapter)[^\n]{0,60}weights? (?:are empty|is empty"
        r"|of size 0)|(?:lora|LoRA|adapter)[^\n]{0,100}torch\.Size\(\[0\]\)|adapter_model\.\w+ is empty"
        r"|(?:lora|LoRA|adapter)[^\n]{0,60} size of 0|torch\.Size\(\[0\]\)[^\n]{0,60}(?:lora_|LoRA)",
        role=Role.POSSIBLE,
        evidence=("https://github.com/huggingface/peft/issues/2500",),
    ),
    Signature(
        id="parameters_empty_under_zero3",
        title="ZeRO-3: parameters have no elements, or a model has 0 of them",
        what="Nothing is wrong with that by itself: outside of its module's forward and backward a parameter's local "
        "tensor is empty, its shape [0] and its numel() 0; ds_shape and ds_numel have the whole. In what was saved it "
        "is wrong: it was written without gathering.",
        remedy="p.ds_numel to count; with deepspeed.zero.GatheredParameters(params) to look or to change "
        "(modifier_rank=0); to save, trainer.save_model or accelerator.get_state_dict(model); load weights before the "
        "model is partitioned, or with from_pretrained. A forward pass or generate() that fails with them runs "
        "without the engine's hooks: call the engine or accelerate's prepared model, with TRL "
        "unwrap_model_for_generation; or ZeRO-2.",
        pattern=r"(?i:zero-?_? ?3|zero stage ?3|stage ?3)[^\n]{0,100}(?:torch\.Size\(\[0\]\)|tensor\(\[\], "
        r"|parameters are "
        r"empty|weights are empty|params are empty|shape is \[0\])|(?:torch\.Size\(\[0\]\)|tensor\(\[\], "
        r"|weights are empty"
        r"|parameters are empty)[^\n]{0,100}(?i:zero-?_? ?3|stage ?3)|trainable params: 0 \|\| all params: 0"
        r"|(?:weight|bias)'?[,:] (?:Parameter containing: ?)?tensor\(\[\], device='(?:cuda|npu|xpu)"
        r"|(?i:zero-?_? ?3|stage-?_? ?3)[^\n]{0,120}(?:become empty|becomes empty|is empty like|empty parameter"
        r"|empty weight|numel\(\)` parameters 0"
        r"|\.numel\(\)` 0|numel\(\)`? becomes 0|numel\(\) is 0|numel\(\) of [^\n]{0,30}\b0\b"
        r"|parameter size (?:was|is) 0|parameters? (?:is|are) 0)"
        r"|(?:become empty|empty parameter|empty weight)[^\n]{0,120}(?i:zero-?_? ?3|stage-?_? ?3)"
        r"|(?:weight|bias), param=torch\.Size\(\[0\]\)|parameters in empty sizes"
        "|"
        + phrases("权重", "就|都|突然|全部|自动|就自动|全都", "为空|变空|变成空|空了")
        + r"|(?:"
        + phrases("did not |does not |doesn't |not automatically ", "gather param|gather the param")
        + r")\w*[^\n]{0,120}(?i:zero-?_? ?3|stage-? ?3)|(?i:zero-?_? ?3|stage-? ?3)[^\n]{0,120}(?:"
        + phrases("did not |does not |doesn't |not automatically ", "gather param|gather the param")
        + ")",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="universal_with_more_ranks",
        title="loading a universal checkpoint with more ranks than it was saved with",
        what="Through 0.17.6 ZeRO-3 looks for the file of its own rank, zero_pp_rank_N_…_model_states.pt, which ranks "
        "beyond the old number do not have.",
        remedy="DeepSpeed 0.18.0 or later; or copy rank 0's file to the missing names.",
        pattern=r"(?:universal|world size expan|more GPUs|more ranks|new rank)[^\n]{0,300}"
        r"zero_pp_rank_\d+_mp_rank_\d+_model_states\.pt",
        affects={"deepspeed": "<0.18.0"},
        role=Role.GENERAL,
        evidence=pull(7599),
    ),
    Signature(
        id="partition_file_missing",
        title="the checkpoint has no file of a rank",
        what="Each rank reads its own zero_pp_rank_… file. Most likely the job has another number of ranks than saved "
        "the checkpoint, it was saved with another ZeRO stage (stage 0 writes none of these files), the files of other "
        "hosts are missing, or saving was interrupted or ran on rank 0 only. A Trainer script may resume from the "
        "last checkpoint in its output directory unasked.",
        remedy="The same stage and number of ranks, or ds_to_universal and load_universal; a directory that all hosts "
        "share; save_checkpoint on every rank. To start anew: another output_dir, or overwrite_output_dir.",
        pattern=r"(?:No such file|not found|[Cc]an't find|[Cc]annot find|does not exist|missing)[^\n]{0,300}"
        r"zero_pp_rank_\d+_mp_rank_\d+_(?:model|optim)_states"
        r"|zero_pp_rank_\d+_mp_rank_\d+_(?:model|optim)_states\.pt[^\n]{0,80}(?:not produced|does not exist|not found"
        r"|FileNotFoundError|is missing|doesn't exist|not exist)|The following zero checkpoints paths are missing",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="experts_loaded_by_number",
        title="MoE: every rank loads the same experts",
        what="With expert parallelism each rank names its own experts 0 to n-1 (deepspeed_experts.0.…). A whole state "
        "dict that load_state_dict gets gives all ranks the first n.",
        remedy="engine.load_checkpoint of a checkpoint that the engine saved. From a file: give each rank the experts "
        "from ep_rank * num_local_experts on, under the names 0 to n-1 "
        "(deepspeed.utils.groups._get_expert_parallel_rank).",
        pattern=r"load\w*[^\n]{0,80} of the (?:first|same) (?:\d+ )?experts|load\w*[^\n]{0,60}experts? parameters"
        r"|expert parallel[^\n]{0,150}\bload_state_dict|load_state_dict[^\n]{0,150}expert parallel"
        r"|same experts on (?:all|each|every|both)",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/6589",),
    ),
    Signature(
        id="compile_without_effect",
        title="torch.compile has no effect with DeepSpeed",
        what="transformers' Trainer of 2023 returns the engine before it compiles; and torch.compile(engine) leaves "
        "the module alone that the engine calls.",
        remedy="engine.compile() after deepspeed.initialize (0.14.4 and later), or a current transformers and "
        "accelerate with torch_compile=True.",
        pattern=r"torch[._]compile[^\n]{0,120}(?:is ignored|not applied|no effect|no `?torch\.compile"
        r"|not called|never "
        r"called|silently ignored|no speed ?up)|no `?torch\.compile`? (?:logs|output|call)",
        role=Role.POSSIBLE,
        evidence=("https://github.com/huggingface/transformers/issues/23095",),
    ),
    Signature(
        id="memory_not_reduced",
        title="ZeRO does not reduce the memory as expected",
        what="With one GPU ZeRO-1, 2 and 3 divide by one. Otherwise most likely: activations, which ZeRO does not "
        "divide, are the larger part; the model is built whole on each rank before it is partitioned (no zero.Init, "
        "or the model is made before TrainingArguments); LoRA, whose frozen weights only ZeRO-3 divides; torch's "
        "cache. estimate_zero…_mem_needs counts weights, gradients and optimizer only. Buckets, and with ZeRO-3 the "
        "parameters that are gathered at a time, come on top: a small model takes more with a higher stage.",
        remedy="More ranks, or offload; gradient checkpointing and a smaller micro-batch; from_pretrained after the "
        "ZeRO-3 config is active; smaller stage3_max_live_parameters, stage3_prefetch_bucket_size and "
        "reduce_bucket_size. deepspeed.runtime.utils.see_memory_usage shows where it goes.",
        pattern=r"Unexpected GPU memory|unexpected memory|cannot fit into [^\n]{0,40}GB"
        r"|does not affect the [^\n]{0,30}(?:VRAM|memory)|memory usage of all gpus is the same|use same memory"
        r"|[Mm]uch more memory used|显存没有|显存并没有|显存占用没有"
        r"|more memory[^\n]{0,20} than (?:in theory|In theory|expected|zero|ZeRO|DDP)|(?:memory"
        r"|VRAM)[^\n]{0,60}(?:is not reduced"
        r"|not reduced|does not decrease|doesn't decrease"
        r"|not decrease"
        r"|is the same as|not saved|no reduction)[^\n]{0,100}(?i:zero|deepspeed|stage)"
        r"|(?i:zero|deepspeed|stage)[^\n]{0,100}(?:does not reduce|doesn't reduce|not reduce"
        r"|not saving (?:any |the |much |GPU )*(?:memory|VRAM)|no memory saving"
        r"|does not save (?:any |the |much |GPU )*(?:memory|VRAM)|doesn't save (?:any |the |much |GPU )*(?:memory|VRAM)"
        r"|uses more memory|more memory than|higher memory|consumes more|same memory)"
        r"|[Hh]igh(?:er)? GPU memory (?:usage|consumption)[^\n]{0,60}(?i:zero|deepspeed)"
        r"|more gpu memory than|more GPU memory than|more VRAM than|"
        + phrases(
            "emory usage |emory consumption |em usage |emory use |emory Usage ",
            "is |stays |remains ",
            "the same|roughly the same|about the same|almost the same|still the same|exactly the same|unchanged",
        )
        + "|"
        + r"[Mm]emory [^\n]{0,40}(?:"
        + phrases(
            "higher than |larger than |Higher Than |more than |greater than ",
            "expected|Expected|estimated|the estimat|theor|in theory|zero|ZeRO|stage",
        )
        + ")"
        + r"|regardless of number of GPUs|regardless of the number of GPUs|regardless of the number of gpus"
        r"|estimate_zero\w*_mem_needs[^\n]{0,160}(?:should be|but |actual|however)|emory usage of zero-?\d is larger"
        r"|igher the zero[^\n]{0,60}memory|not partitioning the model|not partition the model|not sharding the model"
        r"|显存占用一样|显存没有下降|显存没有减少|显存反而|显存基本一样|显存一样|显存占用的一样|显存的占用一样"
        r"|显存占用不变"
        r"|显存占用固定|显存是一样|显存也一样|显存差不多|no obvious benefit from increasing|"
        + phrases("more CUDA |more cuda ", "Memory than|memory than|memory usage than")
        + "|"
        + phrases("gpu |GPU |memory ", "usage ", "will not |does not |doesn't ", "decrease"),
        role=Role.FAMILY,
    ),
    Signature(
        id="slower_than_expected",
        title="training with DeepSpeed is slower than expected",
        what="Most likely: offload (optimizer steps on the CPU, transfers), ZeRO-3's gathering over a slow connection "
        "between GPUs or nodes, micro-batches that are too small, or a job that fits without ZeRO-3.",
        remedy="The lowest stage that fits (0, 1, 2, then 3), no offload if it fits, larger micro-batches with less "
        'accumulation, overlap_comm; "wall_clock_breakdown": true and NCCL_DEBUG=INFO (NVLink, InfiniBand) tell where '
        "the time goes.",
        pattern=r"(?i:zero|deepspeed|offload)[^\n]{0,100}(?:much slower|too slow |is slower|very slow|extremely slow"
        r"|slower than|super slow)"
        r"|(?:much slower|very slow|extremely slow|slower than)[^\n]{0,100}"
        r"(?i:zero-?\d|deepspeed|offload)|[Ss]lower training|slow throughput|raining is slow|raining is very slow"
        r"|raining is too slow|raining is so slow|training slow\b|Slow training|slow training"
        r"|inference (?:is )?(?:more |very |too )?slow|speed is (?:very |too )?slow"
        r"|low training speed|training speed is low|training speed low|more slow\.|slower than before"
        r"|Significantly Slower|significantly slower|Much Slower|much slower with|Slower Than|10x slower"
        r"|10 times slower"
        r"|times slower than|performance drops significantly|performance issue[s]? (?:of|with) (?i:zero|deepspeed"
        r"|offload)"
        r"|offload performance|Offload Performance|slows down|no speed-?up|slower with|训练速度慢|训练很慢|速度很慢"
        r"|速度变慢"
        r"|速度反而更慢|特别慢|非常慢|太慢了|慢很多|GPU利用率低",
        role=Role.FAMILY,
    ),
    Signature(
        id="loss_differs",
        title="the loss or the results differ with DeepSpeed, or between the stages of ZeRO",
        what="Small differences are rounding: the order of sums differs. Most likely otherwise: another global batch "
        "size (micro-batch * accumulation * ranks), a learning rate or a scheduler that the config sets beside the "
        "script, another precision (DeepSpeed casts weights to fp16 or bf16 where amp keeps fp32), dropout's random "
        "numbers per rank, or a bug of this release.",
        remedy="Compare in fp32 on one rank first, then add ranks, precision and stage one by one. `python -m dsfix "
        "list` shows the known wrong results of the installed release, and which of them dsfix fixes; `python -m "
        "dsfix check CONFIG` what contradicts.",
        pattern=r"(?:loss|results?|accuracy|performance)[^\n]{0,50}(?:are different|is different|not the same"
        r"|inconsistent|different "
        r"from|differs from|different when|worse than)[^\n]{0,80}(?i:deepspeed|zero-?\d|zero stage|ddp)|(?i:deepspeed"
        r"|zero-?\d|zero stage)[^\n]{0,80}(?:different loss"
        r"|different results|loss differs|worse results|worse performance|not converge|does not converge"
        r"|doesn't converge"
        r"|loss does not decrease|loss doesn't decrease|loss not decreas|does not learn|doesn't learn)"
        r"|(?i:zero|deepspeed)[^\n]{0,100}(?:produces? different|inconsistent loss|loss discrepanc"
        r"|(?:loss(?:es)?|results?|outputs?) [^\n]{0,40}different from|results are "
        r"completely different|results were much worse|loss are different|loss is different|losses are different"
        r"|loss不一致|loss不同|loss差异|效果不一样|结果不一致|效果变差|效果好|效果不如|效果更好)"
        r"|(?:[Dd]ifferences? between"
        r"|[Ii]nconsistent loss"
        r"|[Ll]oss discrepanc|[Ll]oss difference|[Dd]ifferent loss|[Dd]ifferent results|[Cc]annot replicate"
        r"|Can't reproduce"
        r"|worse results|worse performance|worse accuracy)[^\n]{0,120}(?i:zero|deepspeed)"
        r"|different training (?:losses|results) (?:with|when|under)[^\n]{0,40}(?i:zero|deepspeed)"
        r"|Deepspeed vs DDP|DeepSpeed vs DDP|deepspeed vs ddp|DeepSpeed vs\. DDP|DDP vs DeepSpeed|DeepSpeed vs FSDP"
        r"|Model doesn't learn with fp16|loss does not (?:decreas|converg|drop)|loss doesn't (?:decreas|converg|drop)"
        r"|loss is not (?:decreas|converg|drop)",
        role=Role.FAMILY,
    ),
    Signature(
        id="resumed_differently",
        title="training does not continue where it stopped",
        what="Most likely only the weights were loaded (another engine, save_only_model, load_module_only), the "
        "scheduler or the sampler begins anew, or the number of ranks or the batch size is another one. If the first "
        "step is good and the next is not: the weights were loaded without optimizer states (a fine-tuning option), "
        "and ZeRO's fp32 copies, which a step writes to the model, still have the values from before (a bug of 0.12; "
        "the releases before it were not examined).",
        remedy="engine.load_checkpoint (Trainer: resume_from_checkpoint=checkpoint-N with its global_step…) with the "
        "same config and number of ranks; skip the batches that were used; `python -m dsfix list` shows the known "
        "bugs of resuming in this release.",
        pattern=r"(?:loss|learning rate)[^\n]{0,60}(?:after resuming|when resuming|after loading|after restart)"
        r"|(?:[Rr]esum\w+|resume_from_checkpoint)[^\n]{0,80}(?:loss jumps|loss spikes|loss increases|from step 0"
        r"|starts "
        r"from scratch|from the beginning|not loaded correctly|cannot load model|wrong loss)"
        r"|restored the checkpoint[^\n]{0,80} loss increased|"
        + phrases(
            "oss curve |oss |oss is |oss was ",
            "changes |differs |different |increases |increased |increase |jumps |higher |not continuous ",
            "when loading|after loading|after restart|after restoring",
        )
        + r"|incorrectly load(?:s|ing)? the checkpoint|behaves like it is training from scratch"
        r"|load\w*[^\n]{0,200}(?:"
        + phrases("loss becomes |loss is ", "very large |large |very high |huge ", "after the|from the")
        + r") (?:weight|first|second)"
        r"|(?:step 0|first step)[^\n]{0,200}(?:next step (?:it|the loss)|second step (?:it|the loss)) (?:jumps"
        r"|spikes)",
        role=Role.FAMILY,
    ),
    Signature(
        id="zero3_and_generation",
        title="generation with a ZeRO-3 model is slow, hangs or gives nonsense",
        what="Under ZeRO-3 each token's forward pass gathers all weights, on all ranks together: ranks that stop "
        "earlier leave the others waiting, and a module that is called without the engine's hooks has empty weights.",
        remedy="generate(synced_gpus=True) on every rank; TRL: unwrap_model_for_generation with "
        "ds3_gather_for_generation; vLLM for the rollouts; ZeRO-2; or a model loaded without the ZeRO-3 config for "
        "evaluation.",
        pattern=r"(?i:zero-?_? ?3|zero stage ?3|stage ?3)[^\n]{0,100}(?:\.generate\(|model\.generate|generation is"
        r"|generation "
        r"hangs|during generation|generate\(\) hangs|in generation)|(?:\.generate\(|model\.generate)[^\n]{0,100}"
        r"(?i:zero-?_? ?3|stage ?3)|(?i:zero-?_? ?3|stage-?_?\"?:? ?3)(?![^\n]{0,200}Invalidate trace)"
        r"[^\n]{0,100}(?:model generate |generate will be"
        r"|predict_with_generate|generate is |generating is|generation speed|when generating|while generating)",
        role=Role.FAMILY,
    ),
)
