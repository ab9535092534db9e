"""The field's words for one thing, in English and Chinese. Texts are in lower case, with "_" as a blank."""

from __future__ import annotations

# name -> alternatives of a regular expression, each from the start of a word on, and after |\S* the Chinese ones, which
# may begin anywhere; there is a blank between Chinese and other words
SYMPTOMS = {
    "hang": (
        r"hang(?:s|ing|ed)?\b|hung\b|stuck|stall|deadlock|freezes\b|froze\b|freezing\b(?! (?:the )?(?:param|layer"
        r"|weight))|(?:training|process|program|job|script|code) freeze\b|never (?:returns|finishes|ends|starts"
        r"|completes)|not (?:done|ending|finished|finish)\b|no response|not respond|unable to execute$"
        r"|\S*(?:卡住|卡死|卡在|卡着|卡到|死锁|挂起|不动"
        "|无响应|没反应|没有反应|一直等待)"
    ),
    "slow": (
        r"slow(?:er|ly|ed|s|est|down|ness)?\b|tak(?:es|ing) (?:so |too |very |a |really |extremely )*(?:long|forever"
        r"|ages)\b|speed (?:drop|degrad|is low)|low throughput|low (?:gpu )?utili[sz]ation|(?:no|barely any"
        r"|little) speed ?up|no (?:obvious |real |visible )?(?:benefit|gain|acceleration)"
        r"|\S*(?:慢|很久|加速比|加速不明显|没有加速|利用率低|耗时)"
    ),
    "oom": (
        r"oom\b|out of (?:gpu |cuda |cpu |host |system )?memory|cuda out of memory|(?:not enough|insufficient"
        r"|runs? out of) (?:\w+ )?(?:memory|vram)|\S*(?:显存不足|显存不够|显存还不够|爆显存|显存溢出|超出显存"
        "|显存爆|炸显存|显存炸|爆内存|内存不足|内存溢出|内存爆|爆掉)"
    ),
    "memory": r"(?:gpu |cuda )?memory\b|vram\b|\S*显存",
    "host": (
        r"(?:cpu|host|system|main|ram) (?:memory|ram|oom|mem)\b|(?:out of|more|much|all) (?:the )?(?:cpu|host"
        r"|system) (?:memory|ram)|ram\b|\S*(?:内存)"
    ),
    "grows": (
        r"leak|grows?\b|growing|(?:keeps?|suddenly?|sudden|continuous\w*|slowly|constantly"
        r"|gradually) (?:on )?(?:increas|rising)|increas(?:e|es|ing) (?:in|of|over|with|every|each|as)\b|skyrocket"
        r"|\S*(?:泄漏|泄露|不断增|越来越|持续增|持续上升|不断上升|一直涨|上涨)"
    ),
    "nan": r"nan\b|nans\b",
    "zero loss": (
        "loss (?:is |= ?|becomes |of |drops to |was |always |goes to |turns |being |: ?)*(?:always "
        r"|equal to )?(?:0(?:\.0+)?|zero)\b(?! ?\.?\d)|(?:0|zero) loss|loss \S*(?:为|是|变成|恒定?|都是|一直)\S* 0"
    ),
    "loss": r"loss(?:es)?\b|convergen|converge|perplexity|\S*(?:损失|收敛)",
    "not falling": (
        "(?:not|never|no longer|hardly|fails? to|nothing) (?:seem to be |seem to |be )?(?:decreas"
        r"|converg|learn|improv|drop|fall|go(?:es|ing)? down|descend|reduc|train)|loss (?:\w+ ){0,3}(?:increas|ris"
        r"|rais|explod|diverg|goes up|stays|stagnat|constant|plateau)|diverge[sd]?\b|\S*(?:不下降|不收敛|不降"
        "|降不下|下不去|不学习)"
    ),
    "differs": (
        r"differen(?:t|ce|ces|tly)|differs?\b|inconsisten|mismatch|discrepan|not (?:be )?(?:the )?(?:same"
        r"|match|equal|identical|reproduc\w*|align\w*)|(?:much |far |significantly )?worse|degrad|poor(?:er|ly)?\b"
        r"|replicate|exact same|vs\.? |lower accuracy|accuracy (?:drop|decreas)|\S*(?:不一致|不同|效果差|不如"
        "|对不上|不对齐|差距|变差|精度下降)"
    ),
    "garbage": (
        r"garbage|gibberish|gibbrish|nonsense|repetit|repeat(?:ed|ing|s)\b|(?:random|wrong|incorrect|bad|weird"
        r"|strange|meaningless|invalid|garbled|inconsistent) (?:\w+ )?(?:outputs?|results?|weights?|text"
        r"|tokens?|predictions?|generations?|answers?)\b|(?:output|outputs|result|results|predictions|generation"
        r"|generations) (?:\w+ ){0,3}(?:wrong|incorrect|bad|worse|random|meaningless|garbled|strange)"
        r"|(?:worse|poor) (?:\w+ )?(?:generation|output|prediction|result)|\S*(?:乱码|胡言|胡说|重复输出|重复生成"
        "|输出异常|结果不对|结果错误)"
    ),
    "saving": r"sav(?:e|es|ed|ing)\b(?! (?:\w+ ){0,3}(?:memory|vram|ram)\b)|\S*(?:保存|存储|存模型|存盘)",
    "loading": r"load(?:s|ed|ing)?\b|from pretrained|\S*(?:加载|载入|读取)",
    "resuming": (
        r"resum\w*|(?:continue|continuing|restart|restarting) (?:the )?(?:training|train|from)|\S*(?:恢复训练|断点"
        "|续训|继续训练|接着训练)"
    ),
    "checkpoint": r"check ?points?\b(?!ing)|ckpts?\b|\S*(?:检查点)",
    "empty": (
        r"empty\b|torch\.size\(\[0\]\)|size (?:of |is |= ?)?0\b|no (?:weights|parameters)"
        r"|only (?:\w+ ){0,2}\d+(?:\.\d+)? ?(?:k|kb|m|mb|bytes)\b|(?:very|too|so|extremely|much) small|smaller"
        r"|few (?:kb|mb)|tiny|\S*(?:为空|是空|空的|太小|很小)|只有 ?\d+ ?(?:k|m)|几百 ?k|几 ?k"
    ),
    "incomplete": (
        "missing|incomplete|partial|only (?:save[sd]? )?(?:a |some |one )?(?:part|portion|half|subset)"
        "|part of the (?:model|weights)|not (?:all|full|whole|complete)|(?:no|not find"
        r"|without) (?:\w+ )?(?:file|bin|safetensors|model|weights)\b|\S*(?:未生成|没有生成|没生成|不完整|缺失"
        "|缺少|没有保存|未保存|没保存|只保存)"
    ),
    "fails": (
        r"fail\w*|error\w*|crash\w*|exception\w*|broken?\b|bugs?\b|breaks\b|(?:not|never) (?:be |being )?"
        r"(?:work|able|support|possible|start|run|get)\w*|cannot|can not|could not|unable|problem|issue|invalid|wrong"
        r"|abnormal|unexpected|incorrect|\S*(?:报错|失败|异常|出错|无法|不能|错误|有问题|不了|不起来|不支持|有误|疑似|疑问"
        "|问题)"
    ),
    "results": (
        r"results?\b|accurac\w*|performance\b|metrics?\b|scores?\b|quality\b|numerics?\b|\S*(?:效果|结果|精度"
        "|指标)"
    ),
    "wrong": r"wrong\w*|incorrect\w*|inaccura\w*|not correct|\S*(?:不对|不正确|错误的)",
    "abnormal": r"abnormal\w*|strange\w*|weird\w*|\S*(?:异常|不正常|诡异)",
    "lower": r"lower\b|not faster|no (?:speed ?up|improvement)",
    "none": r"none\b|is null",
    "unbalanced": r"unbalanc\w*|imbalanc\w*|uneven\w*|\S*(?:不均衡|不均匀|不均)",
    "not released": (
        r"(?:not|never) (?:be(?:ing)? )?(?:releas|fre|clear|clean)\w*|release (?:the )?(?:gpu "
        r"|cuda )?(?:memory|vram)|free (?:the )?(?:gpu |cuda )?(?:memory|vram)|\S*(?:释放)"
    ),
    "one gpu": (
        r"only (?:\w+ ){0,2}(?:one|1|a single|single|first) (?:gpu|device|card)|(?:only )?(?:one|1) (?:gpu"
        r"|device) (?:is |was )?(?:used|working|running)|\S*(?:只用了一|只用到一|只有一张|只能用一|单卡在跑)"
    ),
    "unused": (
        r"not (?:fully )?(?:utili[sz]|us)\w*|under-?utili[sz]\w*|mostly empty|\S*(?:没有用满|没用满|利用不"
        "|占用很低)"
    ),
    "connection": (
        r"connect\w*|communicat\w* (?:\w+ )?(?:problem|issue|error|timeout|fail|broken)|time[sd]? ?-?out\b"
        r"|timeouts?\b|refused|unreachable|address already|rendezvous|\S*(?:超时|连接|通信)"
    ),
    "ends": (
        r"(?:exit|stop|quit|terminat|end|crash)\w* (?:\w+ ){0,2}without|(?:is |was |get |gets |got "
        r"|being )?killed|exit ?code|sig(?:kill|term|segv|abrt)|signal \d|\S*(?:自动退出|中断|被杀|退出|没有报错"
        "|无报错)"
    ),
    "large": (
        r"(?:too|very|so|extremely|huge|much) (?:large|big|huge)|larger than|bigger than|twice|doubl\w*|\S*(?:太大"
        "|很大|变大|翻倍)"
    ),
    "how": (
        r"how (?:to|do|can|should|does)\b|(?:could|can) you (?:\w+ )?(?:provide|share|tell|explain)"
        r"|is it possible|can (?:i|we)\b|(?:is|are) there (?:any|a)\b"
        r"|does (?:\w+ )?support|\S*(?:如何|怎么|怎样|是否|支持吗|请问)"
    ),
}
FEATURES = {
    "zero-3": (
        r"(?:deep ?speed[- ])?(?:ds[- ]?)?(?:zero[- ]?)?(?:stage[- =:]*3|z3)\b"
        r"|(?:default-)?zero[- ]?(?:stage[- :=]*)?3\b|zero-?iii"
    ),
    "zero-2": r"(?:default-)?zero[- ]?(?:stage[- :=]*)?2\b|stage[- =:]*2\b|z2\b",
    "zero-1": r"(?:default-)?zero[- ]?(?:stage[- :=]*)?1\b|stage[- =:]*1\b|z1\b",
    "offload": r"(?:cpu[- ]?)?off-?load\w*|\S*卸载",
    "nvme": r"nvme|ssd\b|aio\b|async[- ]io",
    "hpz": r"hpz|zero ?\+\+|zeropp|zero hpz",
    "mics": r"mics\b",
    "fp16": r"fp16|float16|half precision|loss scal\w*|overflow\w*",
    "bf16": "bf16|bfloat16",
    "nodes": (
        r"multi[- ]?(?:node|machine|host|server|computer)s?\b|(?:two|2|several|multiple|3|4|8|many|different|other"
        r"|second|both|across|between) (?:\w+ )?(?:nodes|machines|servers|hosts|computers)\b|nodes\b|inter-?node"
        r"|cluster\b|swarm|slurm|\S*(?:多机|两机|双机|多节点|两台|两个节点|跨机|集群)"
    ),
    "number of ranks": (
        "(?:different|another|changing|change|changed|more|fewer|less|other|new|varying|smaller|larger"
        "|reduced?) (?:the )?(?:numbers?|amounts?|counts?|size)?(?: of)? ?(?:the )?(?:gpus?|ranks?|nodes?"
        r"|devices?|processes|cards)(?: numbers?| counts?| sizes?)?\b|(?:dp|data parallel"
        r"|world)[ -]?(?:world )?sizes?\b|number of (?:gpus|ranks|nodes|devices|processes)|gpu numbers?\b"
        r"|\S*(?:卡数|改变卡|更换卡|不同数量|gpu数量|不同卡)"
    ),
    "start": (
        r"(?:during |in |at |while |when )?initiali[sz]\w*|init\b|(?:at the |very )?(?:beginning|start)(?: of)?\b"
        r"|start(?:s|ing|up)?\b|before (?:the )?(?:training|first)|launch(?:ing|es)?\b|\S*(?:启动|初始化|开始)"
    ),
    "evaluation": r"eval\w*|validat\w*|predict\w*|trainer\.test|testing\b|test\b|\S*(?:验证|评估|预测)",
    "generation": r"generat\w*|rollouts?\b|sampling\b|do sample|decod\w*|\S*(?:生成|推理)",
    "inference": r"inferenc\w*|init inference|infer\b|\S*推理",
    "kernels": (
        r"kernel[- ]?inject\w*|replace with kernel inject|inject kernels?"
        "|deep ?speed[- ]?(?:transformer)?inference|init inference"
    ),
    "fastgen": r"fastgen|mii\b|inference v2|raggedop",
    "adapter": r"(?:q|do|a)?lora\b|peft\w*|adapters?\b|adapter model|modules to save",
    "quantized": (
        r"qlora|[48][- ]?bits?\b|load in [48]bit|bits ?and ?bytes|bnb\w*|quanti[sz]\w*|gptq|awq|int[48]\b|\S*量化"
    ),
    "experts": r"moe\b|\w*moe\b|mixture[- ]of[- ]experts?|experts?\b|mixtral|\S*专家",
    "pipeline": (
        r"pipeline[- ]?(?:parallel\w*|modules?|engines?|stages?)|pipe(?:module|line[sd])\b|pipe parallel|\S*流水线"
    ),
    "tensor parallel": r"tensor[- ]?parallel\w*|auto ?tp\b|auto tensor|tp\b|tp size|\S*张量并行",
    "sequence parallel": r"sequence[- ]?parallel\w*|ulysses|sp\b|sequence parallel|alst\b|\S*序列并行",
    "compile": "torch[. ]compile|deepcompile|dynamo|inductor",
    "installing": (
        r"(?:pip |uv |conda )?install\w*|pip\b|wheels?\b|whl\b|setup\.py|requirements to build"
        r"|\S*(?<!正确)(?<!成功)安装"
    ),
    "building": (
        r"build(?:ing|s)?\b(?! wheel|/)|built\b|compil(?:e|es|ing|ation|er)\b(?! backend)|ninja|nvcc|jit\b|extension\b"
        r"|(?:cpu|fused)[- ]adam|op ?builder|cuda ?home|\S*编译"
    ),
    "windows": r"windows|win(?:10|11|32|64)\b|msvc|visual studio",
    "importing": r"import(?:ing|s|ed)?\b|\S*导入",
    "learning rate": r"learning[- ]rates?\b|lr\b|lr ?scheduler|schedulers?\b|warm-?up\w*|\S*学习率",
    "steps": (
        r"(?:number of|total|training|optimi[sz]ation|max|fewer|more|wrong|less) (?:\w+ )?(?:steps|iterations"
        r"|epochs)\b|steps? (?:number|count)|\S*(?:步数|总步数)"
    ),
    "several models": (
        r"(?:multiple|two|several|many|2|second|different|another) (?:\w+ )?(?:models|networks|engines"
        r"|optimizers)\b|gans?\b|discriminator|\S*(?:多个模型|两个模型)"
    ),
    "reference model": r"ref(?:erence)?[- ]models?\b|dpo\w*|\S*参考模型",
    "rlhf": r"ppo\w*|grpo\w*|rlhf|step ?3\b|actor\b|critic\b|reward model",
    "accumulation": r"(?:gradient[- ])?accumulat\w*|gas\b|\S*梯度累积",
    "micro-batches": r"micro-? ?batch\w*",
    "gradients": r"grad(?:s|ient|ients)?\b(?! (?:accum|check))|grad norm|\S*梯度(?!累)",
    "recomputation": r"(?:gradient|activation)[- ]checkpointing|recomput\w*|use reentrant|\S*重计算",
    "frozen": (
        r"frozen|freez(?:e|ing) (?:\w+ ){0,2}(?:param|layer|weight|model|encoder|backbone)\w*|requires grad"
        r"|\S*冻结"
    ),
    "whole model": (
        r"(?:full|whole|entire|complete|base|final|merged) (?:model|weights)|full[- ](?:param\w*|fine-?tun\w*"
        r"|tuning)|\S*(?:全量|全参)"
    ),
    "zero inference": "zero[- ]?inference",
    "universal": r"universal\b|ds to universal",
    "zero to fp32": (
        r"zero to fp32|fp32 (?:weights|state dict|model)|consolidat\w*|convert\w* (?:\w+ ){0,3}(?:checkpoint"
        "|weights|hf|huggingface)"
    ),
    "changing": r"manipulat\w*|modif\w*|chang(?:e|ing)\b|overwrit\w*|updat(?:e|ing)\b|edit\w*|set\b|\S*(?:修改|改变)",
    "parameters": r"param(?:s|eter|eters)?\b|weights?\b|\S*(?:参数|权重)",
    "padding": r"pad(?:s|ded|ding)?\b",
    "profiler": r"(?:flops[- ])?profil\w*",
    "ema": r"ema\b|exponential moving",
    "alone": (
        r"rank 0 (?:out )?of 1\b|world size (?:is |= ?|of )?(?:only )?1\b"
        "|each (?:process|gpu) thinks"
    ),
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
