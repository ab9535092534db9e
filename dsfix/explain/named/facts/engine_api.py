"""DeepSpeed's engine: deepspeed.initialize, and the methods of what it returns."""

from __future__ import annotations

from ..fact import Fact

_BACKWARD = ("engine.backward", "model_engine.backward", "ds_engine.backward", "model.backward")
_STEP = ("engine.step", "model_engine.step", "ds_engine.step", "model.step")
_INITIALIZE = ("deepspeed.initialize", "ds.initialize")
_ENGINE = "deepspeed/runtime/engine.py"

FACTS = (
    Fact(
        id="initialize_waits_for_all_ranks",
        names=_INITIALIZE,
        title="deepspeed.initialize: what it waits for",
        what="Every rank has to call it. It connects the ranks (torch.distributed), compiles missing operators, where "
        "each process waits for a lock file of the others, broadcasts the parameters from rank 0, and with ZeRO-3 "
        "partitions them one by one: a rank that is elsewhere, has another model or another order stops all.",
        remedy="Compare where each rank stands (py-spy dump). Delete lock files in ~/.cache/torch_extensions that a "
        "killed job has left.",
        beside=("hang + start", "slow + start"),
        evidence=(f"{_ENGINE}: DeepSpeedEngine._broadcast_model", "torch.utils.cpp_extension: FileBaton"),
    ),
    Fact(
        id="initialize_needs_memory",
        names=_INITIALIZE,
        title="deepspeed.initialize: the memory that it takes",
        what="The whole model is moved to each GPU, with ZeRO-3, too, unless it was made under zero.Init; until then "
        "it is whole in the host memory of every process. Then an fp32 copy is made, whole on each GPU without ZeRO, "
        "otherwise divided among the ranks. The optimizer's states are added here or at the first step.",
        remedy="ZeRO-3 with the model made under deepspeed.zero.Init (transformers: TrainingArguments before "
        "from_pretrained), and offload_optimizer where the states do not fit.",
        beside=("oom + start", "memory + start", "host + start", "host + oom"),
        evidence=(f"{_ENGINE}: DeepSpeedEngine._configure_distributed_model",),
    ),
    Fact(
        id="initialize_empties_parameters",
        names=(*_INITIALIZE, "DeepSpeedEngine", "named_parameters", "model.named_parameters", "model.parameters"),
        title="deepspeed.initialize with ZeRO-3: parameters are empty afterwards",
        what="With ZeRO-3 each parameter is partitioned: it has the shape [0] until the hooks of its module gather "
        "it, in a forward or backward pass. This is not a loss of weights. A parameter that is changed outside of "
        "them has to be gathered, and the optimizer's fp32 copy has to be changed, too.",
        remedy="To read weights: deepspeed.zero.GatheredParameters(params) on all ranks. To change them: with "
        "modifier_rank=0, and safe_set_full_fp32_param as well.",
        beside=("empty", "zero-3 + parameters + changing", "zero-3 + parameters + how", "zero-3 + parameters + wrong"),
        evidence=("deepspeed/runtime/zero/partition_parameters.py: GatheredParameters",),
    ),
    Fact(
        id="initialize_for_each_model",
        names=_INITIALIZE,
        title="deepspeed.initialize takes one model and one optimizer",
        what="An engine trains one module with one optimizer. For several models either one module that contains them "
        "all, or one engine each, with its own backward and step. A model without an optimizer in its config gets "
        "none, which ZeRO-1 and 2 refuse. Before 0.19.1 a config dict that two engines get loses torch_adam and "
        "adam_w_mode for the second.",
        remedy="Wrap the models in one nn.Module if their losses are added; otherwise one deepspeed.initialize each, "
        "in the same order on all ranks. A frozen model needs an engine only with ZeRO-3.",
        beside=("several models", "reference model"),
        patches=("config_dict_reused",),
        evidence=("deepspeed/__init__.py: initialize",),
    ),
    Fact(
        id="initialize_casts_model",
        names=_INITIALIZE,
        title="deepspeed.initialize changes the model's dtype",
        what="With fp16 or bf16 enabled the parameters are cast to it, through 0.19.1 the buffers, too; inputs are "
        "not, unless fp16.auto_cast is set. Without either the model keeps its dtype. With them the fp32 weights are "
        "the optimizer's, and module.parameters() are their rounded copies.",
        remedy="Cast inputs to the engine's dtype; tensors that have to be fp32 are made in forward. torch_autocast "
        "in the config (0.17.2 and later) keeps the model in fp32.",
        beside=("fp16 + differs", "bf16 + differs"),
        evidence=(f"{_ENGINE}: DeepSpeedEngine._configure_distributed_model",),
    ),
    Fact(
        id="model_parameters_argument",
        names=("model_parameters",),
        title="deepspeed.initialize: model_parameters is for the optimizer of the config",
        what="model_parameters (tensors or groups) goes to the optimizer that the config names, or to a callable; it "
        "is ignored where an optimizer object is passed. Left out, all parameters of the model are taken, frozen ones "
        "included. Groups keep their own lr and weight_decay.",
        remedy="Pass the trainable parameters, or groups of dicts with params, lr and weight_decay.",
        beside=(*("frozen", "how", "learning rate + ineffective", "learning rate + differs", "learning rate + wrong"),),
        evidence=(f"{_ENGINE}: DeepSpeedEngine._configure_optimizer",),
    ),
    Fact(
        id="engine_retain_graph",
        names=("retain_graph",),
        title="engine.backward and retain_graph",
        what="engine.backward(loss, retain_graph=True) passes it on (in bf16 without ZeRO since 0.16.5), but several "
        "backward passes per step are limited: since 0.17.6 ZeRO-1/2 keep the gradients of the last one only, and "
        "with ZeRO-3 the weights have been released after the first pass. Often it is only wanted because a tensor "
        "was kept from the step before.",
        remedy="Add the losses and call engine.backward once; detach() what is kept for the next step.",
        patches=("bf16_retain_graph_dropped", "zero12_several_backwards_drop", "zero3_second_backward_fetch"),
        evidence=(f"{_ENGINE}: DeepSpeedEngine.backward",),
    ),
    Fact(
        id="backward_divides_by_accumulation",
        names=(*_BACKWARD, *_STEP, "scale_wrt_gas"),
        title="engine.backward divides by gradient_accumulation_steps",
        what="The gradients are divided by the config's gradient_accumulation_steps, and so is what engine.backward "
        "returns; the loss that the script holds is not. A script that divides as well trains with gradients that are "
        "too small. engine.step() belongs after every micro-batch: it updates only at the boundary.",
        remedy="Do not divide in the script, or engine.backward(loss, scale_wrt_gas=False), which 0.18.3 ignores, and "
        "without ZeRO 0.19.6 and later where the model returns the loss.",
        beside=("accumulation", "loss + differs", "gradients + differs"),
        patches=("scale_wrt_gas_ignored", "scale_wrt_gas_ignored_without_zero"),
        evidence=(f"{_ENGINE}: DeepSpeedEngine.backward",),
    ),
    Fact(
        id="several_losses_per_step",
        names=_BACKWARD,
        title="several calls of engine.backward before a step",
        what="A micro-batch is a backward together with an engine.step(). With ZeRO-1/2 since 0.17.6 a second "
        "backward before the update drops the gradients of the first, or raises; with ZeRO-3 since 0.18.5 it drops "
        "them where both follow one forward pass.",
        remedy="Add the losses, and call backward and step once; or, to average them, gradient_accumulation_steps: 2 "
        "with a forward pass and a step for each.",
        beside=("several models", "rlhf + gradients"),
        patches=("zero12_several_backwards_drop", "zero3_two_losses_one_forward"),
        evidence=("deepspeed/runtime/zero/stage3.py: clear_backward_seen_flag, partition_grads",),
    ),
    Fact(
        id="loss_backward_by_itself",
        names=("loss.backward", "tensor.backward"),
        title="loss.backward() with a DeepSpeed engine",
        what="Before 0.18.3 loss.backward() leaves out what engine.backward does: fp16's loss scale, the division by "
        "gradient_accumulation_steps, and the (end of the) reduction among the ranks. Since 0.18.3 it may be called "
        "with ZeRO-1 to 3, in fp16 as engine.scale(loss).backward(); stage 0 refuses it then.",
        remedy="engine.backward(loss) (accelerator.backward, Lightning's manual_backward).",
        beside=("fails", "gradients", "accumulation", "fp16", "differs", "not falling", "how", "several models"),
        evidence=(f"{_ENGINE}: DeepSpeedEngine.scale, _backward_prologue",),
    ),
    Fact(
        id="accumulation_boundary",
        names=("is_gradient_accumulation_boundary", "set_gradient_accumulation_boundary"),
        title="the boundary of gradient accumulation",
        what="It is true if (micro_steps + 1) % gradient_accumulation_steps == 0, and micro_steps only grows in "
        "engine.step(): ask before step, not after. Leftover micro-batches at the end of an epoch are added to the "
        "next one's. set_gradient_accumulation_boundary replaces the count from then on, until it is set again.",
        remedy="engine.step() after every micro-batch. To decide oneself: set it before each forward and backward "
        "pass, and to True before the last one.",
        evidence=(f"{_ENGINE}: DeepSpeedEngine.is_gradient_accumulation_boundary",),
    ),
    Fact(
        id="step_without_update",
        names=("was_step_applied", "skipped_steps"),
        title="steps that change no weights",
        what="engine.step() updates only at the boundary of accumulation, and with fp16 not where a gradient "
        "overflowed: then skipped_steps grows, the loss scale is lowered (with ZeRO not yet by the first overflow) "
        "and the scheduler does not advance. Some skipped steps at the start are normal, as the scale begins at 2**16.",
        remedy="If it goes on until the scale is at its minimum, the gradients are inf or nan: bf16, a lower learning "
        "rate, or look for the nan in the loss.",
        evidence=(f"{_ENGINE}: DeepSpeedEngine._take_model_step",),
    ),
    Fact(
        id="engine_counts_steps",
        names=("engine.global_steps", "model_engine.global_steps", "global_steps", "micro_steps", "global_samples"),
        title="what the engine counts",
        what="micro_steps counts calls of engine.step(), global_steps those at the boundary of accumulation, fp16's "
        "skipped ones included, and global_samples adds train_batch_size for each. A checkpoint without a tag is "
        "named global_stepN by global_steps, which need not be the step of the Trainer. load_checkpoint restores all "
        "but micro_steps.",
        remedy="Give save_checkpoint a tag, where the name matters.",
        beside=("steps", "checkpoint + saving", "resuming", "wrong", "differs"),
        evidence=(f"{_ENGINE}: DeepSpeedEngine._take_model_step",),
    ),
)
