"""The field's words for one thing, in English and Chinese. Texts are in lower case, with "_" as a blank."""

from __future__ import annotations

from .symptoms import SYMPTOMS

__all__ = ["DOMAIN", "FEATURES", "OF_THE_FIELD", "SYMPTOMS"]

# name -> alternatives of a regular expression, each from the start of a word on, and after |\S* the Chinese ones, which
# may begin anywhere; there is a blank between Chinese and other words
FEATURES = {
    "zero-3": (
        r"(?:deep ?speed[- ])?(?:ds[- ]?)?(?:zero[- ]?)?(?:stage[- =:]*3|z3)\b"
        r"|(?:default-)?zero[- ]?(?:stage[- :=]*)?3\b|zero-?iii"
    ),
    "zero-2": r"(?:default-)?zero[- ]?(?:stage[- :=]*)?2\b|stage[- =:]*2\b|z2\b",
    "zero-1": r"(?:default-)?zero[- ]?(?:stage[- :=]*)?1\b|stage[- =:]*1\b|z1\b",
    "offload": r"(?:cpu[- ]?)?off-?load\w*|\S*卸载",
    "nvme": r"nvme|ssd\b|aio\b|async[- ]io|\S*(?:硬盘|固态)",
    "hpz": r"hpz|zero ?\+\+|zeropp|zero hpz",
    "mics": r"mics\b",
    "fp16": r"fp16|float16|half precision|loss scal\w*|overflow\w*",
    "bf16": "bf16|bfloat16",
    "nodes": (
        r"multi[- ]?(?:node|machine|host|server|computer)s?\b|(?:two|2|several|multiple|3|4|8|many|different|other"
        r"|second|both|across|between) (?:\w+ )?(?:nodes|machines|servers|hosts|computers)\b|nodes\b|inter-?node"
        r"|cluster\b|swarm|slurm|between nodes|more nodes|\d+[- ]?nodes\b|multi-? ?nodes?\b|multi-? ?computers?"
        r"|\S*(?:多机|两机|双机|多节点|两台|两个节点|跨机|集群|多服务器|两台服务器)"
    ),
    "number of ranks": (
        "(?:different|another|changing|change|changed|more|fewer|less|other|new|varying|smaller|larger"
        "|reduced?) (?:the )?(?:numbers?|amounts?|counts?|size)?(?: of)? ?(?:the )?(?:gpus?|ranks?|nodes?|devices?"
        r"|processes|cards)(?: numbers?| counts?| sizes?)?\b|(?:dp|data parallel|world)[ -]?(?:world )?sizes?\b"
        r"|number of (?:gpus|ranks|nodes|devices|processes)|gpu numbers?\b|(?:resum\w+|load\w*) (?:\w+ ){0,4}(?:on"
        r"|with|from) (?:\w+ )?(?:different|fewer|more|other|less) (?:\w+ )?(?:gpus?|nodes?|cards)|numer of gpus"
        r"|gpu count|\S*(?:卡数|改变卡|更换卡|不同数量|gpu数量|不同卡|换卡|卡的数量|不同的卡)"
    ),
    "start": (
        r"(?:during |in |at |while |when )?initiali[sz]\w*|init\b|(?:at the |very )?(?:beginning|start)(?: of)?\b"
        r"|start(?:s|ing|up)?\b|before (?:the )?(?:training|first)|launch(?:ing|es)?\b|\S*(?:启动|初始化|开始)"
    ),
    "evaluation": r"eval\w*|validat\w*|predict\w*|trainer\.test|testing\b|test\b|\S*(?:验证|评估|预测|评测)",
    "generation": r"generat\w*|rollouts?\b|sampling\b|do sample|decod\w*|\S*(?:生成|推理)",
    "inference": (
        r"inferenc\w*|init inference|infer\b|predictions?\b(?= (?:do|does|are|is|differ|not|mismatch))|\S*(推理)"
        "|(?:部署)"
    ),
    "kernels": (
        r"kernel[- ]?inject\w*|replace with kernel inject|inject kernels?|deep ?speed[- ]?(?:transformer)?inference"
        "|init inference"
    ),
    "fastgen": r"fastgen|mii\b|inference v2|raggedop",
    "adapter": r"(?:q|do|a)?lora\b|peft\w*|adapters?\b|adapter model|modules to save",
    "quantized": (
        r"qlora|[48][- ]?bits?\b|load in [48]bit|bits ?and ?bytes|bnb\w*|quanti[sz]\w*|gptq|awq|int[48]\b|\S*量化"
    ),
    "experts": (
        r"moe\b|\w*moe\b|mixture[- ]of[- ]experts?|experts?\b|mixtral|mixtr\w*|\d+b-a\d+b\S*|a3b\b|a22b\b"
        r"|deepseek[- ]?v[23]\b|jamba\w*|olmoe\w*|dbrx|\S*(专家)"
    ),
    "pipeline": (
        r"pipeline[- ]?(?:parallel\w*|modules?|engines?|stages?)|pipe(?:module|line[sd])\b|pipe parallel|pipelining\b"
        r"|pp\b(?= ?[=>]|\s+(?:size|stage|parallel))|\S*(流水线)"
    ),
    "tensor parallel": r"tensor[- ]?parallel\w*|auto ?tp\b|auto tensor|tp\b|tp size|\S*张量并行",
    "sequence parallel": r"sequence[- ]?parallel\w*|ulysses|sp\b|sequence parallel|alst\b|\S*序列并行",
    "compile": "torch[. ]compile|deepcompile|dynamo|inductor",
    "installing": (
        r"(?:pip |uv |conda )?install\w*|pip\b|wheels?\b|whl\b|setup\.py|requirements to build"
        r"|\S*(?<!正确)(?<!成功)安装"
    ),
    "building": (
        r"build(?:ing|s)?\b(?! wheel|/)|built\b|compil(?:e|es|ing|ation|er)\b(?! backend)|ninja|nvcc|jit\b"
        r"|extension\b|(?:cpu|fused)[- ]adam|op ?builder|cuda ?home|\S*编译"
    ),
    "windows": r"windows|win(?:10|11|32|64)\b|msvc|visual studio",
    "importing": r"import(?:ing|s|ed)?\b|\S*导入",
    "learning rate": r"learning[- ]rates?\b|lr\b|lr ?scheduler|schedulers?\b|warm-?up\w*|\S*学习率",
    "steps": (
        r"(?:number of|total|training|optimi[sz]ation|max|fewer|more|wrong|less) (?:\w+ )?(?:steps|iterations"
        r"|epochs)\b|steps? (?:number|count)|\S*(?:步数|总步数)"
    ),
    "several models": (
        r"(?:multiple|two|several|many|2|second|different|another) (?:\w+ )?(?:models|networks|engines|optimizers)\b"
        r"|gans?\b|discriminator|\S*(?:多个模型|两个模型)"
    ),
    "reference model": r"ref(?:erence)?[- ]models?\b|dpo\w*|kto\b|orpo\b|\S*(参考模型)",
    "rlhf": r"ppo\w*|grpo\w*|rlhf|step ?3\b|actor\b|critic\b|reward model",
    "accumulation": r"(?:gradient[- ])?accumulat\w*|gas\b|\S*梯度累积",
    "micro-batches": r"micro-? ?batch\w*",
    "gradients": r"grad(?:s|ient|ients)?\b(?! (?:accum|check))|grad norm|\S*梯度(?!累)",
    "recomputation": r"(?:gradient|activation)[- ]checkpointing|recomput\w*|use reentrant|\S*重计算",
    "frozen": (
        r"frozen|freez(?:e|ing) (?:\w+ ){0,2}(?:param|layer|weight|model|encoder|backbone)\w*|requires grad|\S*冻结"
    ),
    "whole model": (
        r"(?:full|whole|entire|complete|base|final|merged) (?:model|weights)|full[- ](?:param\w*|fine-?tun\w*|tuning)"
        r"|\S*(?:全量|全参)"
    ),
    "zero inference": "zero[- ]?inference",
    "universal": r"universal\b|ds to universal",
    "zero to fp32": (
        r"zero to fp32|fp32 (?:weights|state dict|model)|consolidat\w*|convert\w* (?:\w+ ){0,3}(?:checkpoint|weights"
        r"|hf|huggingface)|zero2fp32|(?:after )?convert\w* (?:\w+ ){0,4}(?:format|safetensors)|\S*(?:转换成|转换为"
        "|转成|转为)"
    ),
    "changing": r"manipulat\w*|modif\w*|chang(?:e|ing)\b|overwrit\w*|updat(?:e|ing)\b|edit\w*|set\b|\S*(?:修改|改变)",
    "parameters": r"param(?:s|eter|eters)?\b|weights?\b|\S*(?:参数|权重)",
    "padding": r"pad(?:s|ded|ding)?\b",
    "profiler": r"(?:flops[- ])?profil\w*",
    "ema": r"ema\b|exponential moving",
    "alone": r"rank 0 (?:out )?of 1\b|world size (?:is |= ?|of )?(?:only )?1\b|each (?:process|gpu) thinks",
    "images": (
        r"images?\b|videos?\b|multi-?modal\w*|vision\b|vl(?!lm)\w*\b|vlm\b|text-only|\S*(?:图片|图像|多模态|视频)"
    ),
    "launcher": r"launcher\b|hostfile|pdsh\b|ssh\b",
    "hybrid engine": "hybrid[- ]?engine",
    "first gpu": r"gpu ?0\b|cuda:0|(?:first|one) gpu (?:uses|has|takes|needs)|\S*(?:第一张卡|0 ?号卡|主卡)",
    "visible devices": r"cuda visible devices|--include|gpu ids?\b",
    "nccl": r"nccl\w*",
    "unsloth": "unsloth",
    "fits": r"fit(?:s|ting)? (?:in|into|on|to)\b",
    "embedding": r"(?:resiz\w* )?(?:token )?embeddings?\b|vocab\w*",
    "baseline": (
        r"(?:without|not using|than|vs\.?|versus|compared? (?:to|with)|between|pure|plain|vanilla|native"
        r"|original) (?:\w+ ){0,4}(?:deep ?speed|ddp|fsdp|pytorch|torch|torchrun|hugging ?face\w*|hf|baseline|apex"
        r"|amp|megatron)\b|ddp\b|fsdp\b|torchrun\b|with and without|\S*(?:不用 ?deepspeed|不使用deepspeed"
        "|没有使用deepspeed|不加deepspeed|不开deepspeed)"
    ),
    "several gpus": (
        r"multi-? ?gpus?\b|multiple gpus|(?:two|four|eight|several|all|\d{1,3}) ?(?:x |\* ?)?(?:\w+ )?gpus\b"
        r"|[2-9] gpu\b|more gpus?\b|number of gpus|(?:[2-9]|\d\d) ?张? ?卡|adding gpus|number of devices|\S*(?:多卡"
        r"|多gpu|双卡|两卡|四卡|八卡|张卡|卡数|多\()"
    ),
    "single gpu": r"(?:single|one|1|a)[- ]gpus?\b|\S*(?:单卡|一张卡|单gpu|一卡)",
    "training": r"train(?:s|ed|ing|er)?\b|fine-?tun\w*|sft\b|pretrain\w*|\S*(?:训练|微调|全参)",
    "metric": (
        r"metrics?\b|accurac\w*|acc\b|f1\b|bleu\b|rouge\w*|ppl\b|eval(?:uation)? (?:loss|results?|scores?)|\S*(?:指标"
        "|准确率|评测结果|测试结果|验证结果|评估结果)"
    ),
    "data loader": r"data ?loaders?\b|samplers?\b|iterable ?datasets?\b|\S*(?:数据加载器|采样器)",
    "prepared": r"prepar(?:e|es|ed|ing)\b",
    "epoch": r"epochs?\b|\S*(?:每轮|轮次)",
    "backward": r"backward\w*|backwrad|\S*(?:反向传播)",
    "unused parameters": r"unused (?:\w+ )?param\w*|(?:find|ignore) unused|parameters? (?:\w+ ){0,3}unused",
    "clipping": r"(?:gradient |grad )clip(?:s|ping|ped)?\b|clip grad\w*|max grad norm|\S*(?:梯度裁剪)",
    "vllm": r"vllm\b",
    "page cache": r"page cache|buff(?:er)?s?/cache|cache (?:\w+ ){0,3}(?:larger|grow|increas)\w*",
    "teacher": r"teacher\w*|distill\w*|reward models?\b|\S*(?:蒸馏|奖励模型)",
    "resizing": r"resiz\w*|\S*(?:扩充词表|扩词表)",
    "validation": r"eval\b|evaluat\w*|validat\w*|\S*(?:验证|评估|评测)",
    "model": r"models?\b|weights\b|checkpoints?\b|ckpts?\b|state\b|\S*(?:模型|权重)",
    "p2p": r"p2p\b|nvlink\w*|pcie\b|4090\w*|3090\w*|a6000\w*",
    "full determinism": "full determinism|launch blocking",
    "weights file": r"(?:pytorch|adapter)[- ]model\S*|model\.safetensors|\S*\.bin\b|safetensors",
    "more gpus": (
        r"more gpus?\b|adding gpus|multi-? ?gpus?\b|multiple gpus|(?:increas\w*|scal\w*) (?:\w+ ){0,4}gpus"
        r"|number of (?:gpus|devices)|gpus? (?:\w+ )?slower than|\S*(?:多卡|多gpu|多\(|更多卡|增加卡|增加显卡|卡数)"
    ),
}
# names that no text of another field has
OF_THE_FIELD = frozenset(
    (
        *("accumulation", "bf16", "compile", "experts", "fastgen", "fp16", "gradients", "hpz", "kernels"),
        *("learning rate", "micro-batches", "nccl", "nvme", "offload", "quantized", "reference model", "rlhf"),
        *("sequence parallel", "tensor parallel", "universal", "zero to fp32", "zero-1", "zero-2", "zero-3"),
    )
)
DOMAIN = (
    r"pipeline(?:module|engine)"
    r"|deep ?speed|deepseed|zero[- ]?(?:stage)?[- ]?[123]\b|zero\b.{0,12}(?:offload|stage|\+\+)|gpus?\b"
    r"|raining\b|train\w*|fine-?tun\w*|sft\b|checkpoint\w*|accelerate\b|lora\b|nccl|hugging ?face|trainer"
    r"|llm\b|llama|qwen|pipeline ?(?:parallel|engine)|step ?[123]\b|actor model|fused adam|cpu adam|offload"
    r"|rlhf|zero optimization|transformers?\b|megatron|torch|cuda|\S*(?:训练|微调|显卡|多卡|单卡|模型|显存|卡)"
)
