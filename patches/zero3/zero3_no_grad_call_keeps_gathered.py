"""ZeRO-3: a forward pass without gradients before the backward pass: parameters stay gathered until the step.

Why: ZeRO-3 releases a module's parameters when as many of its inputs have received their gradient as its last forward
    pass counted. Through 0.15.4 each forward pass restarts that count, even one under `torch.no_grad()`, which has no
    backward pass: preference optimization with LoRA runs the policy, then the same model without its adapters as the
    reference, then the backward pass of the policy. The count does not return to zero, and nothing is released before
    the optimizer step: the results are right, but a GPU holds the whole model. Modules that are recomputed by gradient
    checkpointing are counted again, and released. Later: zero3_no_grad_call_keeps_gathered_from_0_16_8.
How: a forward pass without gradients leaves the count as it was. With gradient accumulation this is so in the last
    micro-batch of a step only: ranks on which different layers have an input with a gradient would release different
    parameters, and hang in the next micro-batch. Two forward passes with gradients before one backward pass still keep
    the parameters of the first one gathered, as does a backward pass with `create_graph`.
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

_REGISTER = "deepspeed.runtime.zero.parameter_offload:DeepSpeedZeRoOffload._register_hooks_recursively"
_HOOK = f"{_REGISTER}.<locals>._post_backward_module_hook"
_RESET = "module.ds_grads_remaining = 0"
_RELEASE = "deepspeed.runtime.zero.partitioned_param_coordinator:PartitionedParameterCoordinator.release_and_reset_all"


PATCH = Patch(
    title="ZeRO-3: parameters stay gathered if the model also runs without gradients before the backward pass",
    severity=Severity.LEAK,
    affects={"deepspeed": ">=0.12.0,<0.16.0"},
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
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/6726": "fixed in 0.16.0, taken back in 0.16.8"},
    fixed_in="0.16.0",
    # the other half of the change that fixed it: the counter's function has two names in these releases
    fixed=(Source(_RELEASE, "self.__n_available_params = 0"),),
)


def reproduce(lab: Lab) -> str:
    from ._gathered import train

    return train(lab, evaluating=True)
