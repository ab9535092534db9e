"""Packages, wrappers and versions that do not go together with DeepSpeed."""

from __future__ import annotations

from ..phrases import phrases
from ..signature import Role, Signature

SIGNATURES = (
    Signature(
        id="unsloth_with_deepspeed",
        title="unsloth does not work together with DeepSpeed",
        what="unsloth replaces the model's layers and the Trainer's loop by its own, for one GPU or DDP. Its releases "
        "refuse DeepSpeed, and under ZeRO-3 its code uses weights that are partitioned.",
        remedy="One of the two: unsloth without a DeepSpeed config, or DeepSpeed without unsloth (LLaMA-Factory: no "
        "use_unsloth).",
        pattern=r"(?:Unsloth: )?Deepspeed is not yet supported(?! (?:on|for|with|in|by)\b)|"
        + phrases("unsloth with |unsloth and |unsloth + |Unsloth with |Unsloth and |Unsloth + ", "deepspeed|DeepSpeed")
        + "|"
        + phrases(
            "eepspeed and |eepSpeed and |DS2 + |DS3 + |Zero3 and |zero3 and |ZeRO-3 and |ZeRO3 and ", "unsloth|Unsloth"
        ),
        role=Role.POSSIBLE,
        evidence=("https://github.com/hiyouga/LlamaFactory/issues/2741",),
    ),
    Signature(
        id="wrapped_by_ddp",
        title="DistributedDataParallel and DeepSpeed's engine together",
        what="The engine averages the gradients itself. With DistributedDataParallel around or within it they are "
        "averaged over all ranks once more: with a mixture of experts also those of the experts, which differ from "
        "rank to rank.",
        remedy="Give deepspeed.initialize the bare model, and use the engine it returns.",
        pattern=r"(?:wrap|Wrap|add|Add|combin|along"
        r"|together)[^\n]{0,30}DistributedDataParallel[^\n]{0,60}[Dd]eep[Ss]peed"
        r"|DistributedDataParallel be added[^\n]{0,40}[Dd]eep[Ss]peed|DeepSpeedEngine[^\n]{0,30}(?:in"
        r"|with) DistributedDataParallel",
        role=Role.POSSIBLE,
        evidence=("https://github.com/microsoft/Tutel/issues/89",),
    ),
    Signature(
        id="sparse_attention_and_triton",
        title="DeepSpeed's sparse attention works with an old triton only",
        what="Its kernels (deepspeed.ops.sparse_attention) are written for triton 1.0.0 and torch 1.5 to 1.13; "
        "DeepSpeed calls every other triton untested. Later ones compile them wrongly or not at all, and triton 1.0.0 "
        "does not know later GPUs.",
        remedy="An environment with torch 1.x and triton==1.0.0 on a V100 or A100; otherwise another attention, such "
        "as the sliding window of flash attention or torch's flex_attention.",
        pattern=r"(?<!want to use s)(?:parse [Aa]ttention|parseAttention|parseSelfAttention)[^\n]{0,200}[Tt]riton"
        r"|sparse_dot_(?:sdd|dsd|dds)_",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/1595",),
    ),
    Signature(
        id="size_depends_on_data",
        title="torch.compile: a size is needed as a number, but depends on the data",
        what="An operation in the compiled graph has a size that only the data tell, most likely the unpadding of "
        "flash attention (nonzero), the routing of experts, or packed sequences. DeepCompile, which profiles the "
        "graph before it runs, needs numbers.",
        remedy="Without DeepCompile or torch.compile; or the attention without unpadding (sdpa), or the function "
        "excluded by torch.compiler.disable.",
        pattern=r"GuardOnDataDependentSymNode|SymIntArrayRef expected to contain only concrete integers",
        role=Role.GENERAL,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/7229",),
    ),
    Signature(
        id="autotuning_first_run_failed",
        title="the autotuner's first run of the script failed",
        what="Before it tunes, the autotuner runs the script once (profile_model_info) to measure the model. The "
        "message has the error's text only if that run wrote one; the cause is in the run's own log.",
        remedy="Read stderr.log and stdout.log in autotuning_results/profile_model_info, and run the command that is "
        "in cmd.txt there, without --autotuning.",
        pattern="The model is not runnable with DeepSpeed with error",
        role=Role.GENERAL,
        evidence=("https://github.com/deepspeedai/DeepSpeed/blob/v0.19.5/deepspeed/autotuning/autotuner.py",),
    ),
    Signature(
        id="mii_server_died",
        title="MII: the process of the model server has ended",
        what="Its own error is above, in the output of the server. Most likely the model does not fit into the "
        "memory, a GPU is too old for the kernels (compute capability 6.0 at least), or the port is taken.",
        remedy="The first error above; the same model with deepspeed.init_inference, or with mii.pipeline, in the "
        "script's own process.",
        pattern="server crashed for some reason, unable to proceed",
        role=Role.GENERAL,
        evidence=("https://github.com/deepspeedai/DeepSpeed-MII/issues/123",),
    ),
    Signature(
        id="inference_checkpoint_described",
        title="init_inference: the description of the checkpoint lacks a key",
        what="checkpoint= takes a dictionary, or a JSON file, with the keys type (bloom, ds_model or Megatron), "
        "checkpoints (a list of files) and version; parallelization, mp_size and base_dir may be added.",
        remedy='{"type": "ds_model", "checkpoints": [files], "version": 1.0}; no "checkpoint_path".',
        pattern=r"KeyError: 'checkpoints'",
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/3813",),
    ),
    Signature(
        id="lightning_of_two_packages",
        title="Lightning: objects of the packages lightning and pytorch_lightning are mixed",
        what="lightning.pytorch and pytorch_lightning are two packages with classes of the same names; a Trainer of "
        "one does not accept a strategy, callback or module of the other.",
        remedy="Import all from the same one: from lightning.pytorch.strategies import DeepSpeedStrategy with "
        "lightning.pytorch.Trainer.",
        pattern=r"invalid strategy name: `strategy=<lightning\.[\s\S]{0,300}`pytorch_lightning"
        r"|invalid strategy name: `strategy=<pytorch_lightning\.[\s\S]{0,300}`lightning\.",
    ),
    Signature(
        id="two_networks_prepared",
        title="accelerate with DeepSpeed prepares one model: two are given, or trained together",
        what="An engine has one model and one optimizer. accelerator.prepare with two of them at once (a U-Net and a "
        "text encoder, a policy and its reference) is refused, or trains one only.",
        remedy="One torch module that contains both, prepared with one optimizer; a model that is not trained: no "
        "prepare, only .to(accelerator.device) (ZeRO-3: an engine without an optimizer); accelerate 1.0 or later: "
        "deepspeed_plugins={…}, one Accelerator for each.",
        pattern=r"(?:text_encoder and unet|unet and text_encoder|text encoder and unet|unet and text encoder"
        r"|train-text-encoder|train_text_encoder)[^\n]{0,60}(?i:deepspeed|zero-?\d)"
        r"|unet, text_encoder, optimizer[^\n]{0,80}accelerator\.prepare\(|self\.model, self\.ref_model, self\.optimizer"
        r"|multiple model with (?i:deepspeed)",
        role=Role.POSSIBLE,
        evidence=("https://github.com/huggingface/diffusers/issues/3342",),
    ),
)
