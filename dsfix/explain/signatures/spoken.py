"""What people ask in a sentence, without any message: speed, memory and numbers, by the circumstances they name."""

from __future__ import annotations

from ..phrases import phrases
from ..signature import Role, Signature

SIGNATURES = (
    Signature(
        id="slow_between_nodes",
        title="several nodes are slower than one, or hardly faster",
        what="Most likely the network between the nodes: ZeRO-3 gathers all weights over it in each forward and "
        "backward pass, and again for the gradients, ZeRO-1 and 2 send the gradients and the new weights once per "
        "step. Without InfiniBand or RoCE, or where NCCL does not find it (in a container), NCCL takes TCP sockets.",
        remedy="NCCL_DEBUG=INFO shows NET/IB or NET/Socket, and the interface. ZeRO-1 or 2 if it fits, or ZeRO++'s "
        "zero_hpz_partition_size as the GPUs of a node; more gradient accumulation; NCCL_SOCKET_IFNAME for the "
        "fastest interface. A slow network stays slow: compare with a job on one node.",
        pattern=phrases("slower than ", "one node|single node|a single node|single-node|1 node|one machine")
        + r"|"
        + phrases(
            "nodes is |nodes are |multi-node training is |Multi-node training is ", "slower|very slow|much slower"
        )
        + r"|"
        + phrases(
            "多机|双机|两机|多节点|两台机器", "训练速度慢|训练很慢|训练更慢|训练特别慢|反而更慢|比单机慢|训练比单机"
        ),
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/6889",),
    ),
    Signature(
        id="slow_with_more_gpus",
        title="more GPUs are not faster than one",
        what="Each rank takes a batch of its own: a step does not become shorter, but trains on as many times the "
        "samples, and an epoch has fewer steps, if the loader has a distributed sampler. A step becomes longer by the "
        "communication: most of all with ZeRO-3, a small model or micro-batch, and GPUs without NVLink (PCIe, "
        "without P2P).",
        remedy="Compare samples per second, not the time of a step or the steps per second; the number of steps per "
        "epoch must fall with the number of GPUs. A larger micro-batch or more accumulation, ZeRO-0 to 2 if it fits; "
        "`nvidia-smi topo -m` shows the connections.",
        pattern=phrases(
            "multi-GPU |multi-gpu |multiple GPUs |2 GPUs |4 GPUs |8 GPUs |2 GPU ",
            "slower than 1 |slower than one |slower than single|is slower than|are slower than|not faster than",
        )
        + "|slower than (?:1|one|a single|single) GPU"
        + r"|"
        + phrases("多卡", "比单卡慢|比单卡还慢|训练比单卡慢|反而比单卡|反而更慢|没有加速"),
        role=Role.POSSIBLE,
    ),
    Signature(
        id="memory_of_evaluation",
        title="the memory is exceeded in the evaluation, not in training",
        what="Most likely the results: transformers' Trainer keeps the logits of all batches on the GPU until the end "
        "(batch * length * vocabulary * 2 or 4 bytes each), if metrics are computed of them. Otherwise the "
        "evaluation's own batch size (8 by default) or longer texts, generate()'s cache, or a loop without "
        "torch.no_grad().",
        remedy="eval_accumulation_steps, preprocess_logits_for_metrics (the argmax only), or "
        "prediction_loss_only=True; per_device_eval_batch_size=1; model.eval() and torch.no_grad() in a loop of the "
        "script.",
        pattern=phrases("OOM |OOMs ", "in eval|at eval|in the eval|at the eval|in validation|in the validation")
        + r"|"
        + phrases(
            "memory |memory usage ", "explodes |overflows |doubles |increases |grows ", "during eval|in eval|at eval"
        )
        + r"|"
        + phrases("验证|评估", "时OOM|阶段OOM|阶段显存|时显存暴涨|时显存翻倍"),
        role=Role.POSSIBLE,
    ),
    Signature(
        id="out_of_memory_later",
        title="the GPU's memory is exceeded after some steps, not at once",
        what="Most likely a batch that is longer than those before (padding to the longest text, images of a larger "
        "size); otherwise fragments of torch's cache, tensors with a graph that are kept between steps (a loss that "
        "is added up without item()), or what comes in between: an evaluation, saving that gathers the model on one "
        "rank.",
        remedy="The longest batch first, or a limit of its length; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; "
        "deepspeed.runtime.utils.see_memory_usage each step shows whether the memory grows or jumps; with ZeRO-3 "
        "get_accelerator().empty_cache() after each step.",
        pattern=phrases("OOMs ", "after several|after a few|after some|after about|after a while|at step|in step")
        + r"|(?:训练|跑)了?(?:一段时间|一会儿|几百步|若干步)[^\n]{0,8}OOM",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="evaluation_counted_per_rank",
        title="a metric of the evaluation depends on the number of GPUs",
        what="Each rank evaluates its part of the data. Most likely a metric is computed of one rank's part, or means "
        "of ranks with different numbers of samples are averaged, or the samples count that the sampler repeats so "
        "that all ranks have as many. In 16 bits other batch sizes also round differently.",
        remedy="Gather predictions and labels first (accelerator.gather_for_metrics, which drops the repeated "
        "samples; torch.distributed.all_gather), sum numerators and denominators over the ranks, then divide once.",
        pattern=phrases(
            "metric|metrics|accuracy|eval loss|evaluation results",
            " differs with the number of| differ with the number of| depends on the number of| changes with "
            "the number of",
        )
        + r"|"
        + phrases("单卡和多卡|多卡和单卡|单卡与多卡", "验证结果不|评估结果不|测试结果不|验证指标不|评测结果不"),
        role=Role.POSSIBLE,
    ),
    Signature(
        id="rate_small_for_lora",
        title="LoRA: the loss hardly falls with a learning rate that is meant for full fine-tuning",
        what="An adapter begins at zero and has few parameters: it needs a learning rate some ten times larger than "
        "full fine-tuning does (1e-4 to 3e-4 instead of 1e-5). Otherwise its rank, alpha and target modules are too "
        "small for the task, the scheduler of the DeepSpeed config sets another rate, or the adapter gets no gradient "
        "(reentrant gradient checkpointing).",
        remedy="learning_rate 1e-4 to 3e-4, all linear layers as targets; the logged learning rate and grad_norm show "
        "what counts: with grad_norm 0 model.enable_input_require_grads().",
        pattern=r"(?i:lora)[^\n]{0,6}(?:loss不下降|loss下降很慢|loss降不下|loss无法下降|loss几乎不)"
        r"|(?i:lora)[^\n]{0,40}"
        r"(?:loss does not decrease|loss doesn't decrease|loss is not decreasing|loss not decreasing"
        r"|loss hardly moves|loss hardly falls)",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="loss_falls_by_epochs",
        title="the loss falls in steps, at the beginning of each epoch",
        what="The model sees the same samples again and has learned them by heart, the more so the larger it is and "
        "the higher the learning rate. That the loss of the evaluation rises meanwhile is overfitting. No error of "
        "DeepSpeed.",
        remedy="Fewer epochs (1 to 3), a lower learning rate, more or more varied data, weight decay; the checkpoint "
        "with the best evaluation instead of the last.",
        pattern=phrases("loss |loss is |loss curve ", "drops at the beginning of each|drops at each epoch|staircase")
        + r"|loss(?:呈|是|)(?:阶梯状|阶梯式|台阶状)|loss阶梯式骤降",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="page_cache_while_saving",
        title="the host's memory rises with each checkpoint",
        what="Most likely the kernel's page cache of the files that were written: it counts as used, or as cache, and "
        "is given back when a process needs it. A process that grows itself (RSS) is something else: ZeRO-3 gathers "
        "16-bit weights on rank 0 for saving, a Ray object store or workers that copy the data set.",
        remedy='free -m: "available" counts, not "free"; ps -o rss for the processes. In a container whose limit '
        "includes the cache: save less often, or only the weights (save_only_model).",
        pattern=phrases(
            "memory |RAM |memory usage |CPU memory ",
            "increases after each checkpoint|increases after each save|increases after saving|grows after "
            "each checkpoint",
        )
        + r"|每次保存[^\n]{0,16}内存(?:都会|会|就|)(?:增加|上涨|增长)",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="resuming_needs_memory",
        title="resuming needs more memory than the job did before",
        what="The file of optimizer states is loaded beside those that the engine has already made: on the host 12 "
        "bytes per parameter more, divided by the ranks. Early releases of DeepSpeed, and later ones with "
        '"elastic_checkpoint": true, load the files of all ranks on every rank of ZeRO-1 and 2.',
        remedy="More memory on the host or swap, fewer ranks per host; a current DeepSpeed without "
        '"elastic_checkpoint"; without the optimizer load_checkpoint(…, load_module_only=True), from 0.13 on.',
        pattern=phrases("OOM |OOMs |killed ", "on resum|at resum|in resum|after resum|when it resum|when resum")
        + r"|"
        + phrases("断点续训|恢复训练", "时OOM|OOM了|时内存不足|时内存爆|爆内存"),
        role=Role.POSSIBLE,
        evidence=("https://github.com/huggingface/transformers/issues/17258",),
    ),
    Signature(
        id="memory_of_pipeline",
        title="pipeline parallelism: the memory is not divided evenly by the stages",
        what="A stage keeps the activations of the micro-batches that are on their way: the first one of as many as "
        "there are stages, the last of one or two. The first and the last also have the embedding and the head. "
        "Buffers, the CUDA context and, with one replica, the whole optimizer of a stage do not become smaller.",
        remedy="activation_checkpoint_interval of PipelineModule, smaller micro-batches with more accumulation; "
        'partition_method "parameters" or "type:…", or layers placed by hand; LayerSpec, so that each rank makes its '
        "own layers only; ZeRO-1 with data parallelism for the optimizer.",
        pattern=phrases("pipeline|Pipeline", " parallelism | parallel ", "uses more memory|does not save memory")
        + r"|(?:流水线并行|pipeline并行)[^\n]{0,20}(?:显存不均|显存占用不|显存没有)",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="pipeline_is_slow",
        title="pipeline parallelism is slow, or leaves GPUs idle",
        what="With S stages and M micro-batches per step (gradient_accumulation_steps) each GPU is idle for (S - 1) "
        "of M + S - 1 turns. And the slowest stage sets the pace: the default partition_method balances parameters, "
        "not time.",
        remedy="gradient_accumulation_steps at least four times the number of stages; partition_method "
        '"type:transformerlayer" or layers placed by hand; fewer stages, and data parallelism with '
        "ZeRO-1 for the rest.",
        pattern=phrases("pipeline|Pipeline", " parallelism is | parallel is ", "slower|very slow|too slow|slow")
        + r"|(?:流水线并行|pipeline并行)[^\n]{0,12}(?:速度慢|很慢|更慢|反而慢)",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="evaluation_is_slow",
        title="the evaluation is slow under DeepSpeed",
        what="Most likely texts are generated with ZeRO-3, which gathers all weights for each token; otherwise the "
        "batch size of the evaluation is smaller than that of training, results of all ranks are gathered and joined "
        "on the host, or rank 0 computes the metrics alone while the others wait.",
        remedy="A larger per_device_eval_batch_size, prediction_loss_only, a smaller set; generation after training, "
        "from the saved model (vLLM), or with ZeRO-2 or the weights gathered once (TRL's "
        "unwrap_model_for_generation).",
        pattern=phrases("evaluation |Evaluation |validation |prediction ", "is very slow|is too slow|takes too long")
        + r"|"
        + phrases("验证|评估|预测", "速度很慢|特别慢|非常慢|阶段很慢|过程很慢"),
        role=Role.POSSIBLE,
    ),
    Signature(
        id="host_memory_of_offload",
        title="offload takes more of the host's memory than expected",
        what="With Adam the host holds some 16 bytes per parameter (fp32 weights, two moments, fp32 gradients) over "
        "all ranks of all hosts, with offload_param 2 more for the weights; buffers for the transfers and pinned "
        "memory, which is never swapped, come on top. At the start each rank may have loaded the whole model as well. "
        "What the first step allocates is seen there only.",
        remedy="deepspeed.runtime.zero.stage_1_and_2.estimate_zero2_model_states_mem_needs_all_live or its relative "
        'of stage3 before; "pin_memory": false, offload of the optimizer only, with ZeRO-3 a "ratio" below 1 for part '
        "of it, more hosts, NVMe.",
        pattern=phrases("offload|Offload|offloading", " uses too much | takes too much | uses all the ", "CPU|RAM|host")
        + r"|(?:offload|卸载)[^\n]{0,12}(?:占用大量内存|内存占用过高|占用内存太多)",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="killed_without_message",
        title="the processes are killed without a message",
        what="A process that the kernel kills (SIGKILL) cannot report anything. Most likely the host's memory was "
        "full: each rank loads the whole model, the optimizer is offloaded, ZeRO gathers the model to save it, a "
        "container has a low limit. Otherwise the scheduler ended the job.",
        remedy="`dmesg | tail` (Out of memory: Killed process) on the host, the scheduler's record. Loading: "
        "from_pretrained with the ZeRO-3 config active, low_cpu_mem_usage=True with ZeRO-2; less offload, fewer ranks "
        "per host, more memory or swap.",
        pattern=phrases(
            "process |training |program |job |silently |just ", "gets killed|got killed|is killed|was killed|get killed"
        )
        + r"|"
        + phrases("进程|程序|训练", "直接被杀|被杀掉|被kill|被killed|莫名被杀"),
        role=Role.FAMILY,
    ),
)
