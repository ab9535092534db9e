"""Gradient accumulation, and several backward passes for one step."""

from __future__ import annotations

from ..signature import Role, Signature

SIGNATURES = (
    Signature(
        id="several_backwards",
        title="several backward passes per step with ZeRO-1/2",
        what="At the second engine.backward() of a step, the gradients of the first are gone. 0.17.6 to 0.18.2 raise "
        "this TypeError; later releases silently drop all passes but the last.",
        remedy="Use one backward pass per step: add the losses first, or set gradient_accumulation_steps to the number "
        "of passes and call engine.step() after each.",
        patches=("zero12_several_backwards_drop",),
    ),
    Signature(
        id="no_sync_refused",
        title="accelerate's accumulate with ZeRO-2/3: DeepSpeed rejects no_sync",
        what="Since 0.16.0 DeepSpeed has a no_sync, which rejects ZeRO-2 and ZeRO-3; older accelerate and transformers "
        "enter the no_sync of any model that has one.",
        remedy="transformers 4.47.1 or later for its Trainer, accelerate 1.9.0 or later for Accelerator.accumulate.",
        pattern=r"no[ _]sync context manager is incompatible with gradient ?partitioning",  # also typed by hand
        patches=("no_sync_incompatible",),
        pattern_of="no_sync_incompatible",
        evidence=("https://github.com/huggingface/accelerate/pull/3656",),
    ),
    Signature(
        id="step_inside_no_sync",
        title="ZeRO-0/1: engine.step() inside no_sync",
        what="accelerate through 1.7 calls engine.step() for each micro-batch and, for all but the last, enters the "
        "engine's no_sync, which exists since 0.16.0. The reduction has then been skipped: a patch has no gradients to "
        "step with.",
        remedy="accelerate 1.8.0 or later, or accumulation by DeepSpeed: gradient_accumulation_steps in its config, "
        "and engine.backward and engine.step for each micro-batch, without accumulate.",
        pattern=r"It is illegal to call Engine\.step\(\) inside no_sync",
        affects={"deepspeed": ">=0.16.0"},
        evidence=("https://github.com/huggingface/accelerate/pull/3630",),
    ),
    Signature(
        id="lightning_sets_accumulation",
        title="Lightning sets gradient accumulation in the DeepSpeed config itself",
        what="It takes the value from Trainer(accumulate_grad_batches=…) and refuses a config that has one.",
        remedy='Remove "gradient_accumulation_steps" from the config.',
        pattern=r"Do not set `gradient_accumulation_steps` in the DeepSpeed config",
        evidence=("https://github.com/Lightning-AI/pytorch-lightning/issues/19891",),
    ),
    Signature(
        id="no_sync_twice",
        title="no_sync within no_sync",
        what="The engine's no_sync does not nest: two layers (a framework and the script, or accelerate's accumulate "
        "and another one) enter it.",
        remedy="Enter it once; or none, and gradient_accumulation_steps of the config with engine.step() after each "
        "micro-batch.",
        pattern=r"no_sync context manager reentry is unsupported|cannot be nested inside another no_sync",
        affects={"deepspeed": ">=0.16.0"},
    ),
    Signature(
        id="managed_accumulation_limits",
        title="managed_gradient_accumulation false does not go with this setting",
        what="The script then decides when to step, which pipelines, DeepCompile, apex, and overlap_comm outside of "
        "ZeRO-2 do not support; set_gradient_accumulation_boundary and coalesce_grad_reduction are not for it.",
        remedy="Leave it out, and let gradient_accumulation_steps count; or switch the other setting off.",
        pattern=r"managed_gradient_accumulation=False|coalesce_grad_reduction (?:requires|is not|does not|cannot)",
    ),
    Signature(
        id="retain_graph_not_passed",
        title="retain_graph and engine.backward",
        what="engine.backward(loss, retain_graph=True) passes it on since 2022; releases before, and wrappers of older "
        "accelerate, do not take it. loss.backward() instead of engine.backward skips scaling and reduction before "
        "0.18.3.",
        remedy="A current DeepSpeed and accelerate, and retain_graph in engine.backward (accelerator.backward); or one "
        "loss that is the sum.",
        pattern=r"retain_graph[^\n]{0,30}(?:does not work|doesn't work|not work|not passed|is ignored|has no effect)"
        r"|(?:pass|need|argument)[^\n]{0,40}retain_graph",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/pull/1149",),
    ),
)
