"""Names that an object, a module or a function does not have: code for another wrapper or another release."""

from __future__ import annotations

from ..signature import Role, Signature, pull

_BOTH = "The line above the error names the caller."

SIGNATURES = (
    Signature(
        id="hybrid_engine_without_group",
        title="the hybrid engine has no group for tensor parallelism",
        what="It makes world_size // inference_tp_size groups of inference_tp_size ranks. A rank is in none of them if "
        "inference_tp_size is larger than the number of ranks or does not divide it.",
        remedy="--inference_tp_size 1 (hybrid_engine.inference_tp_size in the config), or a divisor of the number of "
        "ranks.",
        pattern=r"'DeepSpeedHybridEngine' object has no attribute '(?:mp_group|mp_replace)'",
        evidence=("https://github.com/deepspeedai/DeepSpeedExamples/issues/379",),
    ),
    Signature(
        id="engine_is_not_the_model",
        title="the engine has no such attribute, and the model neither",
        what="The engine passes attributes that it does not have on to the model; old releases (DeepSpeedLight, "
        "and DeepSpeedEngine through 0.6.1) pass none on (generate, config). Most likely: code for another wrapper "
        "(engine.model instead of engine.module), for another model, or for another release of DeepSpeed (no_sync "
        "exists since 0.16.0).",
        remedy="engine.module is the model: engine.module.generate(…). If another package accesses it, upgrade "
        "that package and DeepSpeed.",
        pattern=r"'(?:DeepSpeedEngine|DeepSpeedLight|PipelineEngine|InferenceEngine|DeepSpeedHybridEngine)' object has "
        r"no attribute",
        role=Role.GENERAL,
        evidence=(
            "https://github.com/deepspeedai/DeepSpeedExamples/issues/924",
            "https://github.com/huggingface/transformers/issues/10394",
        ),
    ),
    Signature(
        id="engine_method_renamed",
        title="a private method of the engine has another name in this release",
        what="DeepSpeed 0.6.0 renamed _zero3_consolidated_fp16_state_dict to _zero3_consolidated_16bit_state_dict; "
        "accelerate and Lightning of another age than DeepSpeed call the other one.",
        remedy="Upgrade accelerate (or Lightning) and DeepSpeed together.",
        pattern=r"no attribute [^\n]{0,3}_zero3_consolidated_(?:fp16|16bit)_state_dict"
        r"|AttributeError: _zero3_consolidated_(?:fp16|16bit)_state_dict",
        evidence=("https://github.com/huggingface/accelerate/issues/369",),
    ),
    Signature(
        id="model_is_not_the_engine",
        title="code expects a DeepSpeed engine and got something else",
        what="save_checkpoint, backward and optimizer are the engine's. Most likely: the bare model is passed, "
        "because accelerator.prepare or deepspeed.initialize has not run yet or its result is not used; or a package "
        "(TRL, Lightning) unwraps it in this release.",
        remedy="Use what deepspeed.initialize or accelerator.prepare returns; upgrade the package that the traceback "
        "names.",
        pattern=r"'(?!NoneType|dict|float|int|str|tuple|list|Tensor|set|module|Namespace|\w*(?:Config|Arguments"
        r"|Args)')\w+' object has no attribute "
        r"'(?:save_checkpoint|load_checkpoint|backward|optimizer)'",
        role=Role.POSSIBLE,
        evidence=(
            "https://github.com/huggingface/trl/issues/2782",
            "https://github.com/Lightning-AI/pytorch-lightning/issues/13370",
        ),
    ),
    Signature(
        id="engine_config_is_a_dict",
        title="the model's config is asked for, but it is DeepSpeed's dict",
        what="engine.config is the DeepSpeed config, a dict, and hides the model's config.",
        remedy="engine.module.config, or accelerator.unwrap_model(model).config; upgrade the package that the "
        "traceback names.",
        pattern=r"'dict' object has no attribute '(?:is_encoder_decoder|hidden_sizes?|model_type|use_cache|vocab_size"
        r"|pad_token_id|eos_token_id|to_dict|text_config|num_attention_heads)'",
        role=Role.POSSIBLE,
        evidence=("https://github.com/huggingface/trl/issues/3016",),
    ),
    Signature(
        id="trainer_of_another_release",
        title="a Trainer's code does not fit the installed transformers",
        what="The class was derived from, or copied from, the Trainer of another release of transformers (or TRL): "
        "names such as self.deepspeed and is_deepspeed_enabled came and went.",
        remedy="The release of transformers that the project requires, or a newer release of the project.",
        # a trainer of the project's own that has not made these yet is another fault
        pattern=r"'\w*Trainer' object has no attribute '(?!(?:optimizer|model|lr_scheduler)')",
        role=Role.GENERAL,
        evidence=("https://github.com/princeton-nlp/MeZO/issues/12",),
    ),
    Signature(
        id="deepspeed_shadowed",
        title="what Python imports as deepspeed is not DeepSpeed",
        what='Every release has this name. Most likely a file deepspeed.py (perhaps the script itself, "partially '
        'initialized") or a directory deepspeed comes first (in the working directory, or what an uninstalled one left '
        "in site-packages); otherwise the installation is incomplete.",
        remedy='Rename that file or directory, and delete its __pycache__. python -c "import deepspeed; '
        'print(deepspeed.__path__)" shows what is imported; then pip install --force-reinstall --no-deps deepspeed.',
        pattern=r"module 'deepspeed' has no attribute '(?:init_inference|initialize|__version__)'"
        r"|partially initialized module 'deepspeed' has no attribute",
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/7121",),
    ),
    Signature(
        id="deepspeed_of_another_release",
        title="code uses a name that the installed DeepSpeed does not have",
        what=f"Most likely it was written for an older or newer DeepSpeed, often for a private name. Otherwise it "
        f"expects an object of torch, an optimizer or a model, where DeepSpeed's is. {_BOTH}",
        remedy="Upgrade the calling package and DeepSpeed, or install the release that it asks for. `module "
        "'deepspeed' has no attribute`: also a file or directory named deepspeed in the working directory.",
        pattern=r"'(?:DeepSpeed(?!Engine|Light'|HybridEngine|Plugin)\w*|BF16_Optimizer|FP16_\w*Optimizer|PipelineModule"
        r"|PartitionedParameterCoordinator|DSUniversal\w+)' object has no attribute '(?!ds_opt_)"
        r"|cannot import name '\w+' from '(?:partially initialized module ')?deepspeed"
        r"|(?<!python: )(?<!python\d: )No module named '?deepspeed\."
        r"|(?<!partially initialized )module 'deepspeed(?!' has no attribute '(?:init_inference|initialize)')"
        r"(?!\.runtime\.sequence_parallel\.parallel_state_sp')[.\w]*' has no attribute '",
        role=Role.GENERAL,
    ),
    Signature(
        id="engine_without_optimizer",
        title="ZeRO-3 without an optimizer: DeepSpeedZeRoOffload is there instead of one",
        what="deepspeed.initialize got no optimizer (evaluation, testing, a reference or reward model), so the engine "
        "only offloads and gathers the weights; there is nothing to step, and no state to save. "
        "checkpoint_event_prologue: releases before 0.10.2 cannot load or save a checkpoint with such an engine.",
        remedy="checkpoint_event_prologue: DeepSpeed 0.10.2 or later. Otherwise an optimizer in the config or as an "
        "argument if this model is trained, or no call of its optimizer if it is not.",
        pattern=r"'DeepSpeedZeRoOffload' object has no attribute '(?:checkpoint_event_\w+|step|backward|zero_grad"
        r"|param_groups|loss_scale|cur_scale|overflow|state|state_dict|load_state_dict)'",
        evidence=pull(4171),
    ),
    Signature(
        id="transformers_config_without_base",
        title="transformers' DeepSpeed config lacks what it inherits",
        what="transformers.integrations.deepspeed was imported while it did not find DeepSpeed or accelerate, and then "
        "derives its config from an empty class. Most likely one of them was installed afterwards (in the same "
        "notebook), or cannot be imported, or is too old for this transformers.",
        remedy="Install both, then restart the process (the notebook's runtime); `python -c 'import accelerate, "
        "deepspeed'` shows whether they can be imported.",
        pattern=r"'Hf(?:Trainer)?DeepSpeedConfig' object has no attribute '(?:is_zero[23]|is_offload|is_auto|is_true"
        r"|is_false|get_value|config)'",
        role=Role.POSSIBLE,
        evidence=("https://github.com/huggingface/transformers/pull/33370",),
    ),
    Signature(
        id="config_not_of_the_trainer",
        title="the Trainer finds a DeepSpeed config that it did not make",
        what="It finalizes its own config, made by TrainingArguments(deepspeed=…), but accelerate's state holds "
        "another one. Most likely an Accelerator (or a Trainer) was made before, or the releases of transformers and "
        "accelerate do not fit each other.",
        remedy="Make the TrainingArguments with deepspeed=… first, and no Accelerator before them; upgrade "
        "transformers and accelerate together.",
        pattern=r"object has no attribute 'trainer_config_(?:finalize|process)'",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="ppo_needs_plain_models",
        title="TRL's PPO needs a reward and a value model of transformers, with base_model_prefix",
        what="get_reward reads base_model_prefix and the score head of the reward and of the value model. One of them "
        "is wrapped (PEFT) or of another kind; the engine only passes the request on.",
        remedy="AutoModelForSequenceClassification for reward_model and value_model, merged if they have adapters; an "
        "adapter for the policy goes into peft_config.",
        pattern=r"object has no attribute 'base_model_prefix'",
        evidence=("https://github.com/huggingface/trl/issues/3528",),
    ),
    Signature(
        id="deepspeed_argument",
        title="a function of DeepSpeed is called with an argument that this release does not have",
        what=f"The caller was written for an older or newer DeepSpeed. {_BOTH}",
        remedy="Upgrade the calling package (accelerate, transformers) and DeepSpeed together.",
        pattern=r"DeepSpeed\w*(?:\.\w+)?\(\) got an unexpected keyword argument"
        r"|(?:init_inference|init_distributed)\(\) got an unexpected keyword argument",
        role=Role.GENERAL,
    ),
    Signature(
        id="transformers_deepspeed_moved",
        title="transformers.deepspeed has moved",
        what="Its names are in transformers.integrations since 4.33; the old module is deprecated and later removed.",
        remedy="from transformers.integrations import HfDeepSpeedConfig, is_deepspeed_zero3_enabled; or upgrade the "
        "code that imports it.",
        pattern=r"No module named '?transformers\.deepspeed|cannot import name '\w+' from 'transformers\.deepspeed'"
        r"|deprecated[^\n]{0,40} transformers\.deepspeed|transformers\.deepspeed`? (?:module )?(?:is|was"
        r"|has been) (?:deprecated|removed|moved)",
    ),
    Signature(
        id="torch_of_another_release",
        title="this DeepSpeed uses a name that the installed torch does not have",
        what="torch is older than this release of DeepSpeed requires, or so much newer that a name was removed.",
        remedy="A newer DeepSpeed for a newer torch, a newer torch for a newer DeepSpeed.",
        pattern=r"deepspeed/[^\n]*\n(?:[^\n]*\n){1,4}?[^\n]*"
        r"(?:AttributeError: (?:partially initialized )?module 'torch[.\w]*' has "
        r"no attribute '|ImportError: cannot import name '\w+' from 'torch[.\w]*')",
        role=Role.GENERAL,
    ),
)
