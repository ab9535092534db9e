"""The backward pass and the step: no graph, no gradients, NaN, mixed dtypes, schedulers."""

from __future__ import annotations

from ..signature import Role, Signature

SIGNATURES = (
    Signature(
        id="loss_without_graph",
        title="the loss depends on no parameter that requires a gradient",
        what="Most likely reentrant gradient checkpointing with LoRA or a frozen embedding: the first layer's input "
        "requires no gradient, and checkpointing then drops the graph. Otherwise all parameters are frozen, or the "
        "loss was computed under torch.no_grad or from detached tensors.",
        remedy="model.enable_input_require_grads() before training, or "
        'gradient_checkpointing_kwargs={"use_reentrant": False}. Otherwise print which parameters require a gradient.',
        pattern=r"element \d+ of tensors does not require grad and does not have a grad_fn"
        r"|None of the inputs have requires_grad=True",
        role=Role.POSSIBLE,
        evidence=(
            "https://github.com/locuslab/open-unlearning/pull/28",
            "https://github.com/huggingface/transformers/issues/29982",
        ),
    ),
    Signature(
        id="step_without_gradients",
        title="ZeRO-1/2: a step without gradients",
        what="averaged_gradients is filled by engine.backward and emptied by the step. Most likely: a step without "
        "engine.backward (through 0.18.2 loss.backward() does not suffice), optimizer.step() beside engine.step(), two "
        "steps for one backward pass; or a parameter group that got no gradient.",
        remedy="engine.backward(loss) and engine.step() for each micro-batch, and no optimizer.step() or zero_grad(); "
        "with accelerate only accelerator.backward(loss), which steps.",
        pattern=r"averaged_gradients\[\w+\]\)?:?\s+(?:[^\n]*\n){0,3}?[^\n]*(?:KeyError: \d|'NoneType' object)"
        r"|averaged_gradients is None|in has_overflow_partitioned_grads_serial[\s\S]{0,300}"
        r"(?:KeyError: \d|'NoneType' object)",
        role=Role.POSSIBLE,
        evidence=(
            "https://github.com/deepspeedai/DeepSpeed/issues/1806",
            "https://github.com/deepspeedai/DeepSpeed/issues/686",
        ),
    ),
    Signature(
        id="gradients_nan",
        title="the gradients or the loss are NaN",
        what="transformers logs a NaN loss as 0.0. Most likely: fp16 with a model that was trained in bf16; a batch "
        "whose labels are all masked (-100), or longer than the cutoff; an attention implementation that makes NaN of "
        "padded rows; a learning rate that is too high; or a bug of this DeepSpeed (overlap_comm with ZeRO-1/2 in "
        "some releases).",
        remedy="bf16; another attn_implementation; look at the batch of that step. "
        '"overlap_comm": false tells whether it is DeepSpeed; `python -m dsfix list` shows the known wrong results of '
        "the "
        "installed release, and which of them dsfix fixes.",
        # each whole: "grad_norm" alone is in every line of a log
        pattern=r"'grad_norm': nan|'grad_norm': 'nan|grad_norm: nan|grad_norm is nan|grad_norm=nan|grad_norm为nan"
        r"|grad_norm为 nan|grand_norm为nan|grad_norm nan|grad_norm:nan|[Gg]rad norm: nan|rad_norm and loss is nan"
        r"|rad_norm is nan|'loss': nan|'loss': 'nan|loss is nan\b|loss is NaN\b|loss为nan",
        role=Role.POSSIBLE,
        evidence=(
            "https://github.com/deepspeedai/DeepSpeed/issues/5242",
            "https://github.com/2U1/Qwen-VL-Series-Finetune/issues/10",
            "https://github.com/hiyouga/LlamaFactory/issues/8088",
        ),
    ),
    Signature(
        id="dtypes_mixed",
        title="an operation gets tensors of two dtypes",
        what="DeepSpeed casts the parameters to the config's dtype, but not the inputs and the outputs of frozen or "
        "separate models, and does not enter autocast. Most likely: inputs in fp32 for a model in bf16 or fp16, "
        "modules that were kept in fp32 (norms, adapters, a head), or a config without the model's fp16 or bf16.",
        remedy="Cast the inputs to the module's dtype; load the model in the dtype that the config enables; "
        '"torch_autocast": {"enabled": true} in the config (0.17.2 or later), or torch.autocast around the forward '
        "pass.",
        pattern=r"mat1 and mat2 (?:must|to) have the same dtype|expected m1 and m2 to have the same dtype"
        r"|expected scalar type (?:Half|BFloat16|Float) but found|expected mat1 and mat2 to have the same dtype"
        r"|Input type \(\S+\) and (?:bias|weight) type \(\S+\) should be the same",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="one_cycle_division",
        title="OneCycle divides by zero",
        what="DeepSpeed's OneCycle divides by cycle_first_step_size. It is 0 if the steps were calculated from an "
        "empty or a very short data set, or from a number of epochs below 1.",
        remedy='Set "cycle_first_step_size" to a positive number of steps; newer releases say so in a ValueError.',
        pattern=r"(?:in _initialize_cycle|in _get_scale_factor|self\.step_ratio =)[\s\S]{0,600}ZeroDivisionError"
        r"|OneCycle[^\n]*ZeroDivisionError|ZeroDivisionError[^\n]*OneCycle",
    ),
    Signature(
        id="division_by_zero",
        title="a division by zero",
        what="With DeepSpeed most likely a number of steps that is 0: warmup_num_steps or total_num_steps of a "
        "scheduler, cycle_first_step_size of OneCycle, or a data set that is empty or has fewer batches than ranks * "
        "accumulation steps.",
        remedy="Set the steps of the config's scheduler (`python -m dsfix check CONFIG`); compare the number of "
        "batches.",
        pattern=r"ZeroDivisionError: (?:float |integer )?(?:division|modulo|floor division)",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="groups_of_scheduler",
        title="zip() with different lengths: a scheduler and its optimizer have different numbers of groups",
        what="Since torch 2.10 a scheduler's step compares the two. Most likely DeepSpeed removed a group without "
        "parameters from the optimizer after the scheduler was made, as LoRA with the Trainer's weight decay leaves "
        "one; older torch silently assigns the rates of other groups.",
        remedy="dsfix's patch empty_group_scheduler; or leave empty groups out before the scheduler is made, or "
        "transformers 5.1 or later.",
        pattern=r"zip\(\) argument 2 is (?:longer|shorter) than argument 1",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="recomputed_differently",
        title="CheckpointError: the recomputation differs from the forward pass",
        what="Gradient checkpointing compares saved with recomputed tensors. Most likely: ZeRO-3 with frozen "
        "parameters (LoRA), torch 2.5 or later and DeepSpeed before 0.19.3 (the next lines show the shape [0]); "
        "otherwise a cache (use_cache=True), autocast or random branches that differ between the passes.",
        remedy="The shape [0]: DeepSpeed 0.19.3 or later, or dsfix's patch zero3_checkpoint_recompute. "
        "use_cache=False; use_reentrant=True does not compare.",
        pattern=r"Recomputed values for the following tensors have different metadata"
        r"|A different number of tensors was saved during the original forward and recomputation",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="weights_not_contiguous",
        title="Tensors must be contiguous: a parameter is a view that collectives do not take",
        what="deepspeed.initialize broadcasts the parameters of rank 0, and one of them is not contiguous (transposed "
        "or expanded weights, some loaders).",
        remedy="for p in model.parameters(): p.data = p.data.contiguous(), before deepspeed.initialize.",
        pattern=r"Tensors must be contiguous",
        role=Role.GENERAL,
        evidence=("https://github.com/lean-dojo/ReProver/issues/72",),
    ),
    Signature(
        id="backward_outside_engine",
        title="loss.backward() instead of the engine's",
        what="DeepSpeed must scale the loss and reduce the gradients; since 0.18.3 it says so where the plain call "
        "would be wrong.",
        remedy="engine.backward(loss); or engine.scale(loss).backward() where the message offers it.",
        pattern=r"Loss scaling is required for this configuration, but backward"
        r"|Direct calls to tensor\.backward\(\) are not supported",
        role=Role.GENERAL,
        evidence=("https://github.com/deepspeedai/DeepSpeed/pull/7665",),
    ),
)
