"""What questions and reports describe without an error's message: starting, saving, data, compiling, inference."""

from __future__ import annotations

from ..phrases import NO_ERROR, phrases
from ..signature import Role, Signature

SIGNATURES = (
    # hangs
    Signature(
        id="ranks_wait_in_init",
        title="the job hangs while the ranks look for each other",
        what="init_distributed returns when all ranks have arrived at MASTER_ADDR:MASTER_PORT. Most likely the "
        "address or the port is wrong, taken or closed (0, a firewall, an interface that the others do not see), "
        "fewer ranks were started than WORLD_SIZE says, or one of them has failed already. On one node also a lock "
        "that a killed build of an operator left.",
        remedy="The same reachable MASTER_ADDR and a free MASTER_PORT on all ranks; NCCL_SOCKET_IFNAME; the logs of "
        "all ranks; NCCL_DEBUG=INFO; remove ~/.cache/torch_extensions/*/*/lock.",
        pattern=r"(?:(?<![a-z])hang|stuck|(?<!in)stall|freezes\b|卡住|卡死|卡在)[^\n]{0,120}(?:init_distributed"
        r"|deepspeed init\b|init_process_group"
        r"|deepspeed\.init_d|TorchBackend|dist\.init_)|(?:init_distributed|deepspeed init\b|init_process_group"
        r"|deepspeed\.init_d|dist\.init_)[^\n]{0,60}(?:(?<![a-z])hang|stuck|(?<!in)stall|freezes\b|卡住|卡死|卡在)"
        r"|(?:hangs|stuck|freezes)[^\n]{0,200}\n[^\n]*Initializing TorchBackend"
        r"|Initializing TorchBackend[^\n]*\n[^\n]{0,120}(?:hangs|stuck|freezes|卡住|卡在)",
        role=Role.POSSIBLE,
        evidence=("https://github.com/RLHFlow/Online-RLHF/issues/11",),
    ),
    Signature(
        id="inputs_of_other_kinds_hang",
        title="inputs of different kinds: the ranks run different modules and wait for each other",
        what="If some ranks have images, video or audio in a batch and others have none, the encoders and projectors "
        "run on some ranks only: ZeRO-3 gathers their weights, and ZeRO-1 and 2 reduce their gradients, on all ranks "
        "together. After NCCL's timeout the job ends.",
        remedy="The same modules on each rank in each step: a dummy image or clip whose output is multiplied by 0 for "
        "batches without one, or batches of one kind at a time on all ranks; freeze what is not trained.",
        pattern=r"(?:mixed data|mixed-modality|mixed modality|mixed text|mixed image|mixed modal"
        r"|different sizes|different frames|with images"
        r"|without images|text-only|pure text|plain text"
        r"|multimodal data|image-text|images and video|video data|video samples)[\s\S]{0,300}"
        r"(?:(?<![a-z])hang|stuck|freezes\b|deadlock|NCCL timeout|data fails|卡住)"
        r"|(?:(?<![a-z])hangs?\b|stuck|freezes\b|deadlock|卡住)[\s\S]{0,200}(?:text-only|pure text|plain text"
        r"|without images"
        r"|mixed data|images and video|video data)"
        r"|(?:纯文本|视频数据|图片数据|图文混合|图文数据|多模态数据|混合数据)[\s\S]{0,200}(?:卡住|卡死"
        r"|(?<![a-z])hang|超时)"
        r"|(?:卡住|卡死|(?<![a-z])hang|超时)[\s\S]{0,120}(?:纯文本|视频数据|图片数据|图文混合|混合数据)",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="saving_hangs",
        title="saving hangs",
        what="engine.save_checkpoint and save_16bit_model, and with ZeRO-3 gathering the weights, are collectives. "
        "Most likely they are called on rank 0 only (if rank == 0, is_main_process); otherwise another rank has "
        "failed, or writing takes longer than NCCL's timeout.",
        remedy="Call them on all ranks, DeepSpeed chooses who writes; only what follows belongs on rank 0. py-spy "
        "dump --pid PID on each rank shows where it waits.",
        pattern=phrases(
            "hang |hangs |stuck |stucked |hung |hanging |freezes ",
            "when saving|while saving|during saving|on saving|at saving|in save_checkpoint|at save_checkpoint"
            "|on save_checkpoint|during checkpoint|when save|while processes save",
        )
        + r"|save_checkpoint`?[^\n]{0,60}(?:under|in|on|by|inside|for) (?:the |a )?"
        r"(?:`?is_)?(?:main[ _]process|rank ?(?:==?)? ?0)"
        r"|save_checkpoint[^\n]{0,100}(?:(?<![a-z])hangs?\b|stuck|freezes\b|卡住|卡死|卡在)"
        r"|checkpoint gets saved[^\n]{0,80}(?:hangs|stuck)"
        r"|stuck while saving|"
        + phrases(
            "保存模型|保存权重|保存checkpoint|保存ckpt|存模型",
            "卡住|卡死|时卡住|时卡死|的时候卡住|的时候卡死|hang住|时hang住",
        )
        + "|卡在保存模型|卡在保存权重|卡在保存checkpoint",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="waiting_for_rays_resources",
        title="Ray waits for GPUs that the cluster does not have free",
        what="bundle_reservation_check_func waits until a placement group has its GPUs and CPUs. Most likely more are "
        "asked for (actor, critic, reward, reference, vLLM engines) than the cluster has, or an actor died and is "
        "started anew.",
        remedy="`ray status` shows what is asked for and what is free; fewer engines, or models on the same GPUs "
        "(colocate); the logs of actors that ended, /tmp/ray/session_latest/logs.",
        pattern=r"bundle_reservation_check_func",
        role=Role.POSSIBLE,
        evidence=("https://github.com/OpenRLHF/OpenRLHF/issues/331",),
    ),
    # saving, loading, converting
    Signature(
        id="model_cannot_be_saved",
        title="saving the model under DeepSpeed fails, or what is saved is not usable",
        what="Most likely the model is still wrapped (an engine, an adapter, a compiled module): isinstance checks "
        "and keys do not fit (module.), or with ZeRO-3 the weights were not gathered before rank 0 saved them. Saving "
        "that only the main process calls fails or hangs as well: DeepSpeed's save_checkpoint "
        "(accelerator.save_state) is for all ranks.",
        remedy="accelerator.unwrap_model(model) or engine.module for the class and the names, "
        "accelerator.get_state_dict(model) on all ranks for the weights, then save_pretrained(…, state_dict=…) on "
        'rank 0; ZeRO-3: "stage3_gather_16bit_weights_on_model_save": true. Or save_checkpoint and zero_to_fp32.py.',
        pattern=r"(?m:^)(?![^\n]{0,200}\w(?:Error|Exception): )[^\n]{0,200}?(?:"
        + phrases(
            "an not |annot |an't |ailed to |nable to |rror when |rror while |rror in |ug in |roblem with |ssue with "
            "|ssues with ",
            "save model|save the model|save lora|save the lora|save checkpoint|saving model|saving the model"
            "|saving checkpoint|saving lora|save full model|save pretrained|Save Checkpoint|Save Model|Save model"
            "|Save checkpoint|save the checkpoint|saving the checkpoint|save state|save weights|save adapter",
        )
        + "|"
        + phrases(
            "model |checkpoint |weights |adapter ",
            "could not be saved|cannot be saved|can not be saved|can't be saved|couldn't be saved|is not saved properly"
            "|not saved correctly",
        )
        + r"|Model-Saving issue|odel saving issue|odel-saving issue|odel Saving issue|roken model save"
        r"|can not save model|save bug |save_model[^\n]{0,60}cause some bugs"
        r"|模型保存报错|保存模型报错|保存模型失败|模型保存失败|无法保存模型)" + NO_ERROR,
        role=Role.FAMILY,
        evidence=("https://github.com/OpenGVLab/LAMM/issues/32",),
    ),
    Signature(
        id="no_partitions_to_join",
        title="stage 0 has no partitions: zero_to_fp32 finds nothing to join",
        what="Without ZeRO there are no …_optim_states.pt files, which zero_to_fp32 looks for.",
        remedy='torch.load("global_step…/mp_rank_00_model_states.pt", weights_only=False)["module"] are the weights; '
        "save_16bit_model while training.",
        pattern=r"(?i:zero-?_?0\b|zero stage ?0\b|stage ?0\b)[^\n]{0,120}(?:zero_to_fp32|fp32 model|fp32 checkpoint"
        r"|fp32 weights)|zero_to_fp32[^\n]{0,120}(?i:zero-?_?0\b|stage ?0\b)",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="cut_while_converting",
        title="an error in zero_to_fp32; its message is not in the log",
        what="It cannot be told without the message. Seen here: the directory: it needs the file latest and "
        "global_step… below, with …_optim_states.pt of all ranks (ZeRO-0 has none); torch 2.6 or later refuses to "
        "unpickle what an older script loads (weights_only), files are damaged, or the host's memory is full.",
        remedy="The last line of the traceback tells. Use zero_to_fp32 of a current DeepSpeed: python -m "
        "deepspeed.utils.zero_to_fp32 DIRECTORY OUTPUT.",
        pattern=r"zero_to_fp32\.py\", line \d+, in (?:get_fp32_state_dict|_get_fp32_state_dict|convert_zero"
        r"|parse_optim|parse_model|get_optim|get_model|<module>)[^\n]*\n" + NO_ERROR,
        role=Role.FAMILY,
    ),
    # memory
    Signature(
        id="memory_stays_reserved",
        title="memory is not given back: torch keeps it reserved",
        what="torch's allocator keeps freed blocks for itself: see_memory_usage's CA (memory_reserved) stays, MA "
        "(memory_allocated) is what is in use. nvidia-smi shows CA and the CUDA context. If MA stays, something still "
        "refers to the tensors (an optimizer, a list, a closure).",
        remedy="gc.collect(), then get_accelerator().empty_cache(); engine.offload_states() (ZeRO-3, 0.15.2 and "
        "later) frees an engine's own states; engine.destroy() and del the engine at its end.",
        pattern=r"memory_reserved\(\)[^\n]{0,60}(?:still|high|large|not)|"
        + phrases(
            "emory is |emory was |emory not |emory does not |emory is still |VRAM is |VRAM ",
            "not released|not freed|not being freed|not being released|never released|not free up|released after"
            "|freed after|being freed",
        )
        + "|"
        + phrases(
            "release |free |clear ",
            "GPU memory |the GPU memory |gpu memory |the gpu memory |CUDA memory |VRAM |the VRAM ",
            "after|used by|occupied|of the",
        )
        + r"|显存不释放|显存没有释放|显存未释放|释放显存",
        role=Role.FAMILY,
    ),
    # data
    Signature(
        id="loader_without_distributed_sampler",
        title="each rank reads all the data: the loader has no distributed sampler",
        what="DeepSpeed divides the data only in a loader that it makes itself "
        "(deepspeed.initialize(training_data=…)). A DataLoader of the script gives every rank the same batches, and "
        "an epoch has as many times the steps as there are ranks.",
        remedy="DataLoader(…, sampler=DistributedSampler(dataset)) with set_epoch each epoch; accelerate's prepare "
        "and the Trainer do that; an IterableDataset: datasets.distributed.split_dataset_by_node.",
        pattern=phrases(
            "does not have |doesn't have |without |there is no |is missing |lacks |not use ",
            "sampler|a sampler|DistributedSampler|a DistributedSampler|distributed sampler|a distributed sampler",
        )
        + "|"
        + phrases(
            "same data|same batch|same batches|same samples|all the data|whole dataset|entire dataset",
            " on each GPU| on every GPU| on each rank| on every rank| on all GPUs| on all ranks| for each GPU"
            "| for every rank| for each rank| across ranks| across GPUs",
        )
        + r"|each (?:card|GPU|rank|process) (?:is exactly|reads|sees|gets|processes) the same",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="sampler_for_iterable",
        title="an IterableDataset with a sampler",
        what="deepspeed.initialize(training_data=…) makes a DistributedSampler, which needs a length and indices. "
        "torch's DataLoader refuses any sampler for an IterableDataset.",
        remedy="No training_data: DataLoader(dataset, batch_size=train_micro_batch_size_per_gpu) of your own, whose "
        "data set yields each rank its part (get_worker_info and rank; split_dataset_by_node; webdataset's "
        "splitters).",
        pattern=r"DataLoader with IterableDataset: expected unspecified (?:batch_sampler|sampler)",
        role=Role.POSSIBLE,
        evidence=("https://github.com/webdataset/webdataset/issues/81",),
    ),
    Signature(
        id="steps_divided_by_ranks",
        title="the number of steps changes with DeepSpeed or with the number of GPUs",
        what="Each rank trains on its part of the data: an epoch has samples / (micro-batch * accumulation * ranks) "
        "steps. Without DeepSpeed the same command may run as one process (a model spread by device_map, or plain "
        "python) and then has as many times the steps. The global batch is larger, the learning rate is not.",
        remedy="Nothing is wrong if the factor is the number of ranks; for the same global batch divide accumulation "
        "or micro-batch by it, otherwise adapt the learning rate.",
        pattern=r"(?:step ?数|steps|步数)[^\n]{0,20}(?:显著减少|减少了|变少了|变多了|不一致|不对啊|不正确)"
        r"|(?:umber of|otal) (?:training |optimization )?steps[^\n]{0,80}(?:fewer than|less than|decreases"
        r"|decreased|is reduced"
        r"|is divided|is wrong|is smaller|inconsistent|mismatch)|nconsistent training steps|rong number of steps",
        role=Role.FAMILY,
        evidence=("https://github.com/modelscope/ms-swift/issues/6345",),
    ),
    Signature(
        id="ended_without_error",
        title="the job ends, and no error is shown",
        what="The error is in another rank's output, or the process was killed from outside: the host's memory "
        "(exit code -9), a crash in compiled code (-11, -6), the scheduler. On GPUs other than NVIDIA's also a "
        "DeepSpeed that has no accelerator for them (Intel: intel-extension-for-pytorch and oneCCL).",
        remedy="The exit code, `dmesg | tail`; deepspeed --enable_each_rank_log DIR or torchrun --log-dir DIR -r 3; "
        "PYTHONFAULTHANDLER=1; ds_report names the accelerator that DeepSpeed sees.",
        pattern=r"(?:\bstops?\b|stopping|\bexits?\b|crashes|quits|terminates|\bends\b)[^\n]{0,80}(?:without error"
        r"|without an error|no error message|don't get an error|no error is shown|not show any error)"
        r"|(?m:^)(?![^\n]{0,200}(?:正常跑完|跑完的))[^\n]{0,200}?(?:没有任何报错|没有报错信息|无任何报错)",
        role=Role.FAMILY,
    ),
    # models
    Signature(
        id="config_of_the_engine",
        title="engine.config is DeepSpeed's configuration, not the model's",
        what="A DeepSpeedEngine has an attribute config of its own, which hides that of the model it wraps; other "
        "names are looked up in the model.",
        remedy="engine.module.config, or accelerator.unwrap_model(model).config.",
        pattern=r"model\.config\.\w+[^\n]{0,60}(?:n't|not |cannot|fails?\b|error|missing"
        r"|dict)[^\n]{0,60}[Dd]eep[Ss]peed"
        r"|[Dd]eep[Ss]peed[^\n]{0,60}(?:n't|not |cannot|fails?\b|error|missing|dict)[^\n]{0,60}model\.config\b",
        role=Role.POSSIBLE,
        evidence=("https://github.com/huggingface/trl/issues/2197",),
    ),
    Signature(
        id="flash_attention_fails",
        title="flash attention does not work with this job",
        what="It takes fp16 or bf16 only, on GPUs from Ampere on (release 1 also Turing), head dimensions up to 256 "
        "(release 1: 128, on some GPUs 64), and its compiled module must fit torch and CUDA. Most likely the weights "
        "or the inputs are in fp32: fp16 or bf16 is off in the DeepSpeed config or in the arguments.",
        remedy='"bf16" or "fp16" enabled in the config as in the arguments, the model loaded with that torch_dtype; '
        'otherwise attn_implementation="sdpa".',
        pattern=phrases(
            "rror of |RROR of |rror in |rror with |rror from |ssue with |roblem with |rror when using |rror using ",
            "flash_attn|Flash_attn|flash attention|Flash Attention|flash-attn|FlashAttention|flash attn|Flash "
            "attention"
            "|flash-attention|flash_attention",
        )
        + "|"
        + phrases(
            "flash_attn |flash attention |flash-attn |FlashAttention ", "error|fails|failed|does not work|not work"
        )
        + r"|(?:flash_attn|flash-attn|FlashAttention|flash attention)[^\n]{0,40}(?:报错|出错)",
        role=Role.FAMILY,
    ),
    # building and starting
    Signature(
        id="toolkit_older_than_compiler",
        title="nvcc cannot parse the headers of this g++",
        what="The headers of GCC 11's standard library are too new for the nvcc of CUDA 11.6 and older.",
        remedy="A CUDA toolkit of 11.7 or later (of torch's major version), or g++ 10: CC=gcc-10 CXX=g++-10, and "
        "NVCC_PREPEND_FLAGS='-ccbin g++-10'. Or no DS_BUILD_OPS=1.",
        pattern=r"parameter packs not expanded with",
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/2707",),
    ),
    Signature(
        id="cut_while_making_optimizer",
        title="an error while DeepSpeed makes its optimizer; its message is not in the log",
        what="It cannot be told without the message. Seen here: the optimizer's operator (CPUAdam with offload, "
        "FusedAdam without) could not be compiled or loaded: a CUDA toolkit of another version than torch's, no nvcc, "
        "no ninja or compiler, an earlier build in the cache; a parameter of the config that the optimizer does not "
        "know.",
        remedy='The last line of the traceback tells; ds_report. "torch_adam": true, or DS_SKIP_CUDA_CHECK=1 if only '
        "the minor version differs.",
        pattern=r"engine\.py\", line \d+, in (?:_configure_optimizer|_configure_basic_optimizer)\n" + NO_ERROR,
        role=Role.FAMILY,
    ),
    # inference
    Signature(
        id="padding_on_the_right",
        title="generation: a decoder-only model is given batches that are padded on the right",
        what="transformers' warning. It continues after the padding, and the shorter texts of a batch get nonsense.",
        remedy='padding_side="left" where the tokenizer that makes the batch is created (setting it later on another '
        "object has no effect), and the attention_mask passed to generate.",
        pattern=r"right-padding was detected",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="zero_inference_slow",
        title="ZeRO-Inference is slow",
        what="Each token's forward pass moves all weights from the CPU or NVMe to the GPU: it is made for throughput, "
        "with batches as large as the memory allows, not for the speed of one answer.",
        remedy="Large batches, pinned memory, quantized weights; if the model fits the GPUs: tensor parallelism "
        "(init_inference, vLLM) or no offload.",
        pattern=r"(?:ZeRO-Inference|ZeRO Inference|ZeRO-inference|zero-inference|Zero inference|zero inference"
        r"|zero_inference|Zero-Inference)[\s\S]{0,400}(?:\bslow|low speed|takes too long)",
        role=Role.POSSIBLE,
    ),
)
