"""ZeRO-3 with gradient checkpointing: parameters stay gathered after the backward pass, until the optimizer step.

Why: ZeRO-3 releases a module's parameters when as many of its inputs have received their gradient as the forward pass
    counted. 0.16.0 to 0.16.7 no longer reset that counter: gradient checkpointing runs a module's forward pass twice
    for one backward pass, the counter does not return to zero, and nothing is released before the optimizer step. The
    results are right, but a GPU holds the whole model: out of memory where 0.15.4 was not. It affects full fine-tuning
    as well as LoRA, reentrant checkpoints as well as others.
How: the counter is reset before a module runs within a backward pass, which only a recomputation does, and for all
    modules where the optimizer step releases all parameters, so that a forward pass without a backward pass leaves
    nothing behind. Upstream resets it in each forward pass and thereby loses what 0.16.0 had gained: a module that is
    called twice before the backward pass, as in preference optimization, is still released here.
Workaround: Scripts call `engine.empty_partition_cache()` after the backward pass. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OFFLOAD = "deepspeed.runtime.zero.parameter_offload:DeepSpeedZeRoOffload"
_COORDINATOR = "deepspeed.runtime.zero.partitioned_param_coordinator:PartitionedParameterCoordinator"

PATCH = Patch(
    title="ZeRO-3 + gradient checkpointing: parameters stay gathered until the optimizer step, out of memory",
    severity=Severity.LEAK,
    affects={"deepspeed": ">=0.16.0,<0.16.8", "torch": ">=2.0.0"},  # earlier ones do not number backward passes
    changes=(
        Edit(
            f"{_OFFLOAD}.pre_sub_module_forward_function",
            before="param_coordinator = self.get_param_coordinator()",
            code="if torch._C._current_graph_task_id() != -1:\n    sub_module.ds_grads_remaining = 0",
            effect="parameters were released in the backward pass (unpatched: they stay gathered)",
            when="torch._C._current_graph_task_id() != -1 and getattr(sub_module, 'ds_grads_remaining', 0) > 0"
            " and any(not getattr(each, 'ds_persist', True) for each in sub_module.parameters(recurse=False))",
        ),
        Edit(
            f"{_OFFLOAD}.partition_all_parameters",
            after="self.get_param_coordinator().release_and_reset_all(self.module)",
            code="for sub_module in self.module.modules():\n    sub_module.ds_grads_remaining = 0",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/7116": "reported",
        "https://github.com/deepspeedai/DeepSpeed/issues/6966": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/6726": "introduced in 0.16.0",
        "https://github.com/deepspeedai/DeepSpeed/pull/7258": "fixed in 0.16.8",
    },
    fixed_in="0.16.8",
    # the other half of the change that introduced it: the counter's function has two names in these releases
    present=(Source(f"{_COORDINATOR}.release_and_reset_all", "self.__n_available_params = 0"),),
    fixed=(
        Source(
            f"{_OFFLOAD}._register_deepspeed_module",
            "module.ds_grads_remaining = 0\n"
            "return apply_to_tensors_only(module.post_bwd_fn.apply, inputs, "
            "warning_msg_fn=_bwd_hook_unexpected_inputs_msg)",
        ),
        Source(
            f"{_OFFLOAD}._register_hooks_recursively",
            "module.ds_grads_remaining = 0\nif not hasattr(module, 'post_bwd_fn'):\n    ...",
        ),
    ),
)


def reproduce(lab: Lab) -> str:
    from ._gathered import train

    return train(lab, checkpointing=True)
