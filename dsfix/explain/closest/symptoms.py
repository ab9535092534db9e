"""What people complain about: the words for one symptom, in English and Chinese. In lower case, "_" as a blank."""

from __future__ import annotations

# name -> as in vocabulary.py
SYMPTOMS = {
    "hang": (
        r"hang(?:s|ing|ed)?\b|hung\b|stuck|stall|deadlock|freezes\b|froze\b|freezing\b(?! (?:the )?(?:param|layer"
        r"|weight))|(?:training|process|program|job|script|code) freeze\b|never (?:returns|finishes|ends|starts"
        r"|completes)|not (?:done|ending|finished|finish)\b|no response|not respond|unable to execute$|stucks\b"
        r"|blocks forever|wait(?:s|ing) forever|unresponsive|freezes up|\S*(?:卡住|卡死|卡在|卡着|卡到|死锁|挂起|不动"
        "|无响应|没反应|没有反应|一直等待|卡主|卡了|hang住|停住|停滞)"
    ),
    "slow": (
        r"slow(?:er|ly|ed|s|est|down|ness)?\b|tak(?:es|ing) (?:so |too |very |a |really |extremely )*(?:long|forever"
        r"|ages)\b|speed (?:drop|degrad|is low)|low throughput|low (?:gpu )?utili[sz]ation|(?:no|barely any"
        "|little) speed ?up|no (?:obvious |real |visible )?(?:benefit|gain|acceleration)|(?:speed|throughput"
        r"|tokens per second|samples per second) (?:is |was |becomes? )?(?:low|lower|drops?|decreas\w*|worse)\b"
        r"|takes (?:\w+ )?(?:longer|more time|twice)|low mfu|low tflops|high latency|latency (?:is |increas)"
        r"|utili[sz]ation (?:\w+ )?(?:is |was )?(?:\w+ )?low\b|low (?:gpu )?util\w*|crawl\w*|time (?:\w+ )?(?:not"
        r"|hardly) (?:decreas|go down|reduc|shrink)\w*|tak(?:es|ing|e) (?:\w+ ){0,2}\d+\+? ?(?:s|secs?|seconds?|mins?"
        r"|minutes?|hours?|days?)\b|\S*(?:慢|很久|加速比|加速不明显|没有加速|利用率低|耗时|利用率很低|利用率较低"
        "|利用率太低|时间太长|时间过长|时间很长|用时)"
    ),
    "oom": (
        r"oom\b|out of (?:gpu |cuda |cpu |host |system )?memory|cuda out of memory|(?:not enough|insufficient"
        r"|runs? out of) (?:\w+ )?(?:memory|vram)|\S*(?:显存不足|显存不够|显存还不够|爆显存|显存溢出|超出显存|显存爆"
        "|炸显存|显存炸|爆内存|内存不足|内存溢出|内存爆|爆掉|内存不够|内存还不够)"
    ),
    "memory": r"(?:gpu |cuda )?memory\b|vram\b|\S*显存",
    "host": (
        r"(?:cpu|host|system|main|ram) (?:memory|ram|oom|mem)\b|(?:out of|more|much|all) (?:the )?(?:cpu|host"
        r"|system) (?:memory|ram)|ram\b|\S*(?:内存)"
    ),
    "grows": (
        r"leak|grows?\b|growing|(?:keeps?|suddenly?|sudden|continuous\w*|slowly|constantly"
        r"|gradually) (?:on )?(?:increas|rising)|increas(?:e|es|ing) (?:in|of|over|with|every|each|as)\b|skyrocket"
        r"|more and more\b|climb\w*|creep\w*|explod\w*|blow\w* up|balloon\w*|\S*(?:泄漏|泄露|不断增|越来越|持续增"
        "|持续上升|不断上升|一直涨|上涨|不断增长|逐渐增|暴涨|飙升)"
    ),
    "nan": r"nan\b|nans\b|(?:grad(?:ient)? ?norm|loss) (?:\w+ ){0,2}inf\b|nan(?=\W|$)|\S*(?:为nan|变nan)",
    "zero loss": (
        "loss (?:is |= ?|becomes |of |drops to |was |always |goes to |turns |being |: ?)*(?:always "
        r"|equal to )?(?:0(?:\.0+)?|zero)\b(?! ?\.?\d)|(?:0|zero) loss|loss \S*(?:为|是|变成|恒定?|都是|一直)\S* 0"
        r"|loss (?:\w+ ){0,3}(?:drop|become|turn|go|fall|decrease|suddenly|being)\w* (?:\w+ )?(?:to )?(?:0(?:\.0+)?"
        r"|zero)\b(?! ?\.?\d)|loss (?:and \w+ )?(?:drops?|falls?) to 0\b(?!\.\d)|loss \S*(?:变为|降为|降到|降成|就"
        r"|归)\S* ?(?:0|零)|loss (?:\S+ ){0,5}?\S*(?:降为|变为|变成|降到|归|就) ?(?:0|零)(?!\.?\d)"
        r"|loss always 0\b(?!\.\d)"
    ),
    "loss": r"loss(?:es)?\b|convergen|converge|perplexity|\S*(?:损失|收敛)",
    "not falling": (
        "(?:not|never|no longer|hardly|fails? to|nothing) (?:seem to be |seem to |be )?(?:decreas|converg|learn"
        r"|improv|drop|fall|go(?:es|ing)? down|descend|reduc|train)|loss (?:\w+ ){0,3}(?:increas|ris|rais|explod"
        r"|diverg|goes up|stays|stagnat|constant|plateau)|diverge[sd]?\b|loss (?:is |does |do |did )?(?:not |hardly "
        r"|barely )(?:go|chang|mov|decreas)|(?:does|is|did) not learn|\S*(?:不下降|不收敛|不降|降不下|下不去|不学习"
        "|没有下降|几乎不降|无法收敛|不收敛)"
    ),
    "differs": (
        r"differen(?:t|ce|ces|tly)|differs?\b|inconsisten|mismatch|discrepan|not (?:be )?(?:the )?(?:same|match|equal"
        r"|identical|reproduc\w*|align\w*)|(?:much |far |significantly )?worse|degrad|poor(?:er|ly)?\b|replicate"
        r"|exact same|vs\.? |lower accuracy|accuracy (?:drop|decreas)|(?:goes?|is|are|results) far (?:away )?from"
        r"|var(?:y|ies)\b|gap (?:in|between)|subpar|inferior|inaccurate compared|\S*(?:不一致|不同|效果差|不如|对不上"
        "|不对齐|差距|变差|精度下降|差很多|不匹配|差异|效果很差|效果变差|效果不好|效果好)"
    ),
    "garbage": (
        r"garbage|gibberish|gibbrish|nonsense|repetit|repeat(?:ed|ing|s)\b|(?:random|wrong|incorrect|bad|weird"
        r"|strange|meaningless|invalid|garbled|inconsistent) (?:\w+ )?(?:outputs?|results?|weights?|text|tokens?"
        r"|predictions?|generations?|answers?)\b|(?:output|outputs|result|results|predictions|generation"
        r"|generations) (?:\w+ ){0,3}(?:wrong|incorrect|bad|worse|random|meaningless|garbled|strange)|(?:worse"
        r"|poor) (?:\w+ )?(?:generation|output|prediction|result)|answers? (?:is|are) (?:\w+ )?(?:wrong|random"
        r"|garbage)|keeps? repeating|endless(?:ly)?\b|\S*(?:乱码|胡言|胡说|重复输出|重复生成|输出异常|结果不对"
        "|结果错误)"
    ),
    "saving": (
        r"sav(?:e|es|ed|ing)\b(?! (?:\w+ ){0,3}(?:memory|vram|ram)\b)|(?:export|dump)(?:s|ing"
        r"|ed)? (?:\w+ ){0,2}(?:model|weights|checkpoint)s?|\S*(?:保存|存储|存模型|存盘|导出)"
    ),
    "loading": r"load(?:s|ed|ing)?\b|from pretrained|\S*(?:加载|载入|读取)",
    "resuming": (
        r"resum\w*|(?:continue|continuing|restart|restarting) (?:the )?(?:training|train|from)|restor(?:e|es|ed"
        r"|ing)\b|(?:checkpoint|training) restart|restart(?:ed|ing)? (?:\w+ ){0,2}(?:from|checkpoint)|after (?:a "
        "|the )?checkpoint load|(?:load|loading) (?:a |the )?(?:saved )?(?:training )?(?:checkpoint|state)s? (?:and"
        "|to) (?:continue|train)|when loading (?:a |the )?checkpoint|after loading (?:a |the )?checkpoint"
        r"|\S*(?:恢复训练|断点|续训|继续训练|接着训练)"
    ),
    "checkpoint": r"check ?points?\b(?!ing)|ckpts?\b|\S*(?:检查点)",
    "empty": (
        r"empty\b|torch\.size\(\[0\]\)|size (?:of |is |= ?)?0\b|no (?:weights|parameters)"
        r"|only (?:\w+ ){0,2}\d+(?:\.\d+)? ?(?:k|kb|m|mb|bytes)\b|(?:very|too|so|extremely|much) small|smaller"
        r"|few (?:kb|mb)|tiny|\d+(?:\.\d+)? ?(?:kb|bytes)\b|\d+(?:\.\d+)? ?(?:k|m|kb|mb|bytes) only\b|\S*(?:为空|是空"
        r"|空的|太小|很小)|只有 ?\d+ ?(?:k|m)|几百 ?k|几 ?k|(?:几百 ?k|几十 ?k|仅有 ?\d+ ?k|仅有几)"
    ),
    "incomplete": (
        "missing|incomplete|partial|only (?:save[sd]? )?(?:a |some |one )?(?:part|portion|half|subset)"
        r"|part of the (?:model|weights)|not (?:all|full|whole|complete)|(?:no|not find|without) (?:\w+ )?(?:file|bin"
        r"|safetensors|model|weights)\b|not (?:be )?(?:generated|saved|created|written)\b"
        r"|can ?not find (?:\w+ )?(?:model|weights|bin)|\S*(?:未生成|没有生成|没生成|不完整|缺失|缺少|没有保存|未保存"
        "|没保存|只保存|没有模型文件|找不到模型|没有权重|无法保存|下没有|没有找到|找不到)"
    ),
    "fails": (
        r"fail\w*|error\w*|crash\w*|exception\w*|broken?\b|bugs?\b|breaks\b|(?:not|never) (?:be |being )?(?:work|able"
        r"|support|possible|start|run|get)\w*|cannot|can not|could not|unable|problem|issue|invalid|wrong|abnormal"
        "|unexpected|incorrect|not being able|not (?:be |being )?(?:correctly |properly )?(?:saved|loaded|resumed"
        r"|restored)\b|\S*(?:报错|失败|异常|出错|无法|不能|错误|有问题|不了|不起来|不支持|有误|疑似|疑问|问题)"
    ),
    "results": (
        r"results?\b|accurac\w*|performance\b|metrics?\b|scores?\b|quality\b|numerics?\b|\S*(?:效果|结果|精度|指标)"
    ),
    "wrong": r"wrong\w*|incorrect\w*|inaccura\w*|not correct|\S*(?:不对|不正确|错误的)",
    "abnormal": r"abnormal\w*|strange\w*|weird\w*|\S*(?:异常|不正常|诡异)",
    "lower": (
        r"lower\b|not faster|no (?:speed ?up|improvement)|(?:is|are|was) (?:very |quite )?(?:poor|bad)\b|drops?\b"
        r"|dropped\b"
    ),
    "none": r"none\b|is null",
    "unbalanced": r"unbalanc\w*|imbalanc\w*|uneven\w*|\S*(?:不均衡|不均匀|不均)",
    "not released": (
        r"(?:not|never) (?:be(?:ing)? )?(?:releas|fre|clear|clean)\w*|release (?:the )?(?:gpu |cuda )?(?:memory|vram)"
        r"|free (?:the )?(?:gpu |cuda )?(?:memory|vram)|\S*(?:释放)"
    ),
    "one gpu": (
        r"only (?:\w+ ){0,2}(?:one|1|a single|single|first) (?:gpu|device|card)|(?:only )?(?:one|1) (?:gpu"
        "|device) (?:is |was )?(?:used|working|running)|only (?:the )?(?:gpu ?0|first gpu|cuda:0)|only (?:us(?:es|ing"
        r"|ed|e)) (?:one|1|a single|gpu ?0)|\S*(?:只用了一|只用到一|只有一张|只能用一|单卡在跑)"
    ),
    "unused": (
        r"not (?:fully )?(?:utili[sz]|us)\w*|under-?utili[sz]\w*|mostly empty|unused\b(?! param)|idle\b"
        r"|\S*(?:没有用满|没用满|利用不|占用很低)"
    ),
    "connection": (
        r"connect\w*|communicat\w* (?:\w+ )?(?:problem|issue|error|timeout|fail|broken)|time[sd]? ?-?out\b"
        r"|timeouts?\b|refused|unreachable|address already|rendezvous|\S*(?:超时|连接|通信)"
    ),
    "ends": (
        r"(?:exit|stop|quit|terminat|end|crash)\w* (?:\w+ ){0,2}without|(?:is |was |get |gets |got |being )?killed"
        r"|exit ?code|sig(?:kill|term|segv|abrt)|signal \d|\S*(?:自动退出|中断|被杀|退出|没有报错|无报错)"
    ),
    "large": (
        r"(?:too|very|so|extremely|huge|much) (?:large|big|huge)|larger than|bigger than|twice|doubl\w*|huge\b"
        r"|\S*(?:太大|很大|变大|翻倍)"
    ),
    "how": (
        r"how (?:to|do|can|should|does)\b|(?:could|can) you (?:\w+ )?(?:provide|share|tell|explain)|is it possible"
        r"|can (?:i|we)\b|(?:is|are) there (?:any|a)\b|does (?:\w+ )?support|how (?:are|is|did)\b|\S*(?:如何|怎么"
        "|怎样|是否|支持吗|请问)"
    ),
    "ineffective": (
        r"not (?:be |being |get )?(?:\w+ )?(?:work(?:ing)?|activat\w*|updat\w*|decay\w*|chang\w*|follow\w*|appl\w*"
        r"|respect\w*|take effect)\b|no effect|does nothing|ignored\b|constant\b|stays\b|overrid\w*|(?:in"
        r"|at) (?:the )?wrong (?:place|time)|strange\b|\S*(?:失效|不生效|无效|不起作用|无法衰减|不衰减|没有变化|不变)"
    ),
    "size 0": (
        r"torch\.size\(\[0\]\)|numel(?:\(\))? (?:\w+ ){0,4}0\b|(?:shape|size)s? (?:\w+ ){0,6}(?:\[0\]|zero"
        r"|0)(?![\d.])|tensor\(\[\]|0-?sized?\b|zero[- ]sized?\b|zero elements|0 (?:parameters|elements)\b"
        r"|num parameters(?:\(\))? (?:\w+ ){0,3}0\b|returns? 0 (?:with|in|under|for)\b|\S*(?:形状为 ?0|大小为 ?0"
        "|维度为 ?0)"
    ),
    "excess": (
        r"more\b|high(?:er)?\b|too much|huge|larger?\b|exceed\w*|abnormal|unexpected\w*|same\b|doubl\w*|twice|(?:not"
        r"|never) (?:see |seeing |be |being )?(?:\w+ )?(?:desirable|desired|decreas|reduc|drop|sav|chang|help|lower"
        r"|shard|partition|split|divid|scal)\w*|no (?:memory )?(?:reduction|saving|difference|benefit)s?\b|(?:each"
        r"|every|per) gpu (?:\w+ ){0,2}(?:whole|full|entire|load)|copied|replicat\w*|each gpu"
        r"|not (?:\w+ )?go(?:ing)? down|far more|way more|\S*(?:翻倍|一样|没有减少|没减少|没有降|没降|不能减少|没变"
        "|不变|更多|更大|更消耗|很大|很高|过高|偏高|异常|超出预期|反而|成倍|固定|相同|没有节省|相等|没区别|降不下"
        "|还多|还高|还大|更占)"
    ),
    "killed": (
        r"killed\b|kills\b|sig ?kill|(?:silent|silently) (?:crash|exit|die|kill|fail)\w*|crash\w* silently"
        r"|oom[- ]kill\w*|(?:code|error|exitcode|exits? with)s? ?[:=]? ?-9\b|\S*(?:被杀|杀掉|杀死|被 ?kill|杀了)"
    ),
    "code -7": r"(?:code|error|exitcode|exits? with)s? ?[:=]? ?-7\b|signal 7\b|sig ?bus\b|bus error",
    "code -11": (
        r"(?:code|error|exitcode|exits? with)s? ?[:=]? ?(?:\d+ and )?-11\b|signal 11\b|sig ?segv\b|segmentation fault"
        r"|segfault\w*|\S*(?:段错误)"
    ),
    "code -6": r"(?:code|error|exitcode|exits? with)s? ?[:=]? ?-6\b|signal 6\b|sig ?abrt\b",
    "later": (
        r"after (?:\w+ ){0,3}(?:steps?|iterations?|epochs?|hours?|minutes?|batches|while)\b|(?:in the )?middle of"
        r"|halfway|midway|suddenly|at first\b|\d+ ?(?:\+ ?)?steps|\S*(?:一段时间|几步|若干|中途|途中|跑到|训练到|一会"
        "|过程中|运行一部分)"
    ),
    "duplicated": (
        r"(?:each|every|all) (?:gpus?|ranks?|process(?:es)?|workers?|devices?) (?:\w+ ){0,3}(?:same|whole|entire|full"
        r"|all) (?:\w+ )?(?:data|batch|sample|dataset)\w*|same (?:data|batch|batches|samples)\b|duplicat\w*|(?:not"
        r"|never) (?:be |being )?(?:correctly |properly )?(?:split|shard|sharded|distributed|divided|prepared)\b"
        r"|\S*(?:相同的数据|数据重复|重复的数据)"
    ),
    "same data": (
        r"(?:each|every|all) (?:gpus?|ranks?|process(?:es)?|workers?|devices?) (?:\w+ ){0,3}(?:same|whole|entire|full"
        r"|all) (?:\w+ )?(?:data|batch|batches|samples?|dataset)\b|same (?:data|batch|batches"
        r"|samples) (?:\w+ ){0,3}(?:each|every|all|different) (?:gpus?|ranks?|process(?:es)?)|\S*(?:相同的数据"
        "|一样的数据|数据重复)"
    ),
}
