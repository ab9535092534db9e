"""ZeRO-3: a forward pass without gradients before the backward pass: parameters stay gathered.

Why: ZeRO-3 releases a module's parameters when as many of its inputs have received their gradient as its last forward
    pass counted. Since 0.16.8 a pass under `torch.no_grad()` restarts that count, too, although it has no backward
    pass: preference optimization with LoRA runs the policy, then the same model without adapters as the reference, then
    the policy's backward pass. The results are right, but a GPU holds the whole model until the step, since 0.19.3
    until the end of the backward pass. Earlier releases: zero3_no_grad_call_keeps_gathered.
How: a forward pass without gradients leaves the count as it was. From 0.19.3 on the next micro-batch gathers the
    parameters again; earlier releases keep them in all micro-batches of a step but the last, because otherwise ranks
    would release different layers and hang. Two forward passes with gradients before one backward pass, and
    `create_graph`, still keep parameters gathered.
Changes: what uses parameters between the backward pass and the step without `GatheredParameters`, as ZeRO-3 requires,
    no longer finds them by chance. Where different layers have an input with a gradient on each rank, a further forward
    pass between the last backward pass and the step may hang, as without that pass. No number changes.
Workaround: Scripts run the reference before the policy, or call `engine.empty_partition_cache()` after the backward
    pass. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import RAN, Edit, Patch, Severity, Source

from .._shared import kept

if TYPE_CHECKING:
    from dsfix.lab import Lab

_REGISTER = "deepspeed.runtime.zero.parameter_offload:DeepSpeedZeRoOffload._register_deepspeed_module"
_HOOK = f"{_REGISTER}.<locals>._post_backward_module_hook"
_RESET = "module.ds_grads_remaining = 0"
_RELEASE = "deepspeed.runtime.zero.partitioned_param_coordinator:PartitionedParameterCoordinator.release_and_reset_all"


PATCH = Patch(
    title="ZeRO-3 (0.16.8 or later): parameters stay gathered if the model also runs without gradients before backward",
    severity=Severity.LEAK,
    affects={"deepspeed": ">=0.16.8"},
    changes=(
        Edit(_HOOK, before=_RESET, code="awaited = module.__dict__.get('ds_grads_remaining', 0)"),
        Edit(
            _HOOK,
            after=_RESET,
            code="if not torch.is_grad_enabled():\n    module.ds_grads_remaining = kept(module, awaited)",
            uses=(kept,),
            effect=RAN,  # the backward pass may never come
            when="not torch.is_grad_enabled() and awaited > 0",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/6726": "related: the fix of 0.16.0",
        "https://github.com/deepspeedai/DeepSpeed/pull/7258": "introduced in 0.16.8",
    },
    present=(Source(_HOOK, _RESET),),
    # the other half of what 0.16.8 took back: the counter's function has two names in 0.16.0 to 0.16.7
    fixed=(Source(_RELEASE, "self.__n_available_params = 0"),),
)


def reproduce(lab: Lab) -> str:
    from ._gathered import train

    return train(lab, evaluating=True)
