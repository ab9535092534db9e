"""transformers' TrainingArguments and DeepSpeed config: what they make, complete and pass on."""

from __future__ import annotations

from ..fact import Fact

FACTS = (
    Fact(
        id="timeout_of_trainer",
        names=(
            "ddp_timeout",
            "InitProcessGroupKwargs",
            "NCCL_TIMEOUT",
            "DEEPSPEED_TIMEOUT",
        ),
        beside=(
            "hang",
            "connection",
            "slow",
            "unused",
            "fails + nccl",
        ),
        title="ddp_timeout does not reach the groups that ZeRO uses",
        what="It is the timeout of the first process group. ZeRO's collectives run in groups that DeepSpeed "
        "makes by new_group without a timeout, which is torch's default there: 10 minutes for NCCL since "
        "torch 2.2, 30 before. A longer one does not mend a hang: a rank is missing (tokenising, saving, "
        "an error of its own).",
        remedy="Look for the rank that stopped first, and do long work before the training; else "
        "torch.distributed.distributed_c10d.default_pg_nccl_timeout = timedelta(hours=2) before "
        "deepspeed.initialize (the Trainer: before train).",
        evidence=(
            "deepspeed.comm.torch.TorchBackend.new_group",
            "https://github.com/huggingface/transformers/issues/32036",
        ),
    ),
    Fact(
        id="attributes_of_arguments",
        names=(
            "deepspeed_plugin",
            "hf_deepspeed_config",
            "distributed_state",
            "transformers/trainer.py:create_accelerator_and_postprocess",
        ),
        title="transformers: attributes that TrainingArguments make for DeepSpeed",
        what="deepspeed_plugin and hf_deepspeed_config are set in TrainingArguments.__post_init__. Arguments "
        "whose own __post_init__ does not call it, that do not derive from TrainingArguments, or of a "
        "package that was written for another transformers (optimum, a project's Trainer) do not have "
        "them. Without deepspeed=… the plugin is None, or is taken from accelerate launch.",
        remedy="super().__post_init__() in the own class; the releases that the project names; "
        "TrainingArguments(deepspeed=FILE).",
        evidence=("transformers.TrainingArguments.__post_init__",),
    ),
    Fact(
        id="hf_config_object",
        names=(
            "HfDeepSpeedConfig",
            "is_deepspeed_zero3_enabled",
            "set_hf_deepspeed_config",
            "unset_hf_deepspeed_config",
        ),
        title="transformers: how from_pretrained knows of ZeRO-3",
        what="transformers keeps a weak reference to the last HfDeepSpeedConfig; while that object lives and its "
        "stage is 3, every from_pretrained without a quantization config makes a partitioned model, also one that "
        "is not trained. If it is made after the model, or is not kept in a variable, the model is loaded whole on "
        "each rank.",
        remedy="TrainingArguments(deepspeed=…), or dschf = HfDeepSpeedConfig(config) without Trainer, before "
        "from_pretrained, and kept; unset_hf_deepspeed_config() before models that are not to be "
        "partitioned.",
        evidence=("transformers.integrations.deepspeed.is_deepspeed_zero3_enabled",),
    ),
    Fact(
        id="training_arguments_first",
        names=(
            "TrainingArguments",
            "Seq2SeqTrainingArguments",
            "HfArgumentParser",
        ),
        beside=(
            "zero-3 + oom",
            "zero-3 + host",
            "zero-3 + loading",
            "loading + oom",
            "loading + host",
            "zero-3 + start",
        ),
        title="transformers: TrainingArguments have to be made before the model",
        what="With a ZeRO-3 config in their argument deepspeed, from_pretrained partitions the weights while "
        "it loads them. If the model is loaded first, each rank loads all of it, and it is partitioned "
        "only when training starts.",
        remedy="TrainingArguments first, then from_pretrained without device_map, started by deepspeed, torchrun "
        "or accelerate launch. For a model from AutoModel.from_config the same.",
        evidence=("transformers.TrainingArguments.__post_init__",),
    ),
    Fact(
        id="trainer_config_values",
        names=(
            "HfTrainerDeepSpeedConfig",
            "trainer_config_process",
            "trainer_config_finalize",
            "transformers/integrations/deepspeed.py:trainer_config_process",
            "transformers/integrations/deepspeed.py:trainer_config_finalize",
            "transformers/integrations/deepspeed.py:fill_match",
            "transformers/deepspeed.py:trainer_config_finalize",
        ),
        title="transformers: the DeepSpeed config is completed from the arguments",
        what='Values that are "auto" are filled in, others must equal the arguments (batch sizes, accumulation, '
        'learning rate, betas, weight decay, clipping, warm-up, precision). Bucket sizes that are "auto" need '
        "hidden_size in the model's config (in current releases also in its text_config).",
        remedy='"auto" for everything that TrainingArguments say, too; numbers for the bucket sizes of a model '
        "without hidden_size.",
        evidence=("transformers.integrations.deepspeed.HfTrainerDeepSpeedConfig",),
    ),
)
