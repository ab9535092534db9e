"""ZeRO-3 with gradient checkpointing: parameters stay gathered after the backward pass, up to the optimizer step.

Why: ZeRO-3 releases a module's parameters when as many of its inputs have received their gradient as the forward pass
    has counted. 0.16.0 to 0.16.7 no longer set that counter back: gradient checkpointing runs a module's forward pass
    twice for one backward pass, the counter does not come back to zero, and nothing is released before the optimizer
    step. The results are right, but a GPU holds the whole model: out of memory where 0.15.4 was not. It concerns
    full fine-tuning as well as LoRA, reentrant checkpoints as well as others.
How: the counter is set back before a module that is run in a backward pass, which is what a recomputation is, and for
    all modules where the optimizer step releases all parameters, so that a forward pass without a backward pass leaves
    nothing behind. Upstream sets it back in each forward pass, and with that loses what 0.16.0 had gained: a module
    that is called twice before the backward pass, as in preference optimization, is still released.
Upstream: https://github.com/deepspeedai/DeepSpeed/issues/7116 and 6966, brought by
    https://github.com/deepspeedai/DeepSpeed/pull/6726 (0.16.0), taken back by
    https://github.com/deepspeedai/DeepSpeed/pull/7258 (0.16.8).
Retire: when DeepSpeed 0.16.7 is no longer supported here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OFFLOAD = "deepspeed.runtime.zero.parameter_offload:DeepSpeedZeRoOffload"
_COORDINATOR = "deepspeed.runtime.zero.partitioned_param_coordinator:PartitionedParameterCoordinator"

PATCH = Patch(
    title="ZeRO-3 + gradient checkpointing: parameters stay gathered up to the optimizer step, out of memory",
    severity=Severity.LEAK,
    affects={"deepspeed": ">=0.16.0,<0.16.8", "torch": ">=2.0.0"},  # older ones do not number backward passes
    changes=(
        Edit(
            f"{_OFFLOAD}.pre_sub_module_forward_function",
            before="param_coordinator = self.get_param_coordinator()",
            code="if torch._C._current_graph_task_id() != -1:\n    sub_module.ds_grads_remaining = 0",
        ),
        Edit(
            f"{_OFFLOAD}.partition_all_parameters",
            after="self.get_param_coordinator().release_and_reset_all(self.module)",
            code="for sub_module in self.module.modules():\n    sub_module.ds_grads_remaining = 0",
        ),
    ),
    symptom="",
    upstream=(
        "https://github.com/deepspeedai/DeepSpeed/issues/7116",
        "https://github.com/deepspeedai/DeepSpeed/issues/6966",
        "https://github.com/deepspeedai/DeepSpeed/pull/6726",
        "https://github.com/deepspeedai/DeepSpeed/pull/7258",
    ),
    fixed_in="0.16.8",
    # the other half of the change that brought it: the function of the counter has two names in these releases
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

_STEPS = 2


def reproduce(lab: Lab) -> str:
    assert lab.torch is not None  # with its device, before others import it
    from dsfix.lab.reference import largest_difference

    gathered, parameters = _train(lab, checkpointing=False)
    assert gathered == [0] * _STEPS, f"without checkpointing {gathered} parameters are gathered after a backward pass"
    gathered, recomputed = _train(lab, checkpointing=True)
    difference = largest_difference(recomputed, parameters)
    assert difference.absolute == 0.0, f"after {_STEPS} steps {difference}"
    seen = f"after the backward passes of {_STEPS} steps {gathered} of {len(parameters)} parameters are still gathered"
    if gathered == [len(parameters)] * _STEPS:
        raise BugPresent(f"{seen}, none without checkpointing")
    assert gathered == [0] * _STEPS, seen
    return f"{seen}, as without checkpointing"


def _train(lab: Lab, checkpointing: bool) -> tuple[list[int], dict[str, Any]]:
    """How many parameters were gathered after each backward pass, and the parameters at the end."""
    torch = lab.torch
    from torch.utils.checkpoint import checkpoint

    from dsfix.lab.models import MLP, regression_batch

    class Checkpointed(MLP):
        def forward(self, x: Any) -> Any:
            forward = super().forward
            return checkpoint(forward, x, use_reentrant=False) if checkpointing else forward(x)

    model = Checkpointed()
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    gathered = []
    for step in range(_STEPS):
        inputs, targets = (tensor.to(lab.device) for tensor in regression_batch(rank=0, step=step))
        # a module whose input needs no gradient is not told of the end of its backward pass, on any release
        engine.backward(torch.nn.functional.mse_loss(engine(inputs.requires_grad_()), targets))
        gathered.append(
            sum(
                parameter.ds_status.name == "AVAILABLE"  # type: ignore[attr-defined,unused-ignore]
                for parameter in model.parameters()
            )
        )
        engine.step()
    return gathered, lab.parameters(engine)
