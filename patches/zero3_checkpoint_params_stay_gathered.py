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
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

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
        ),
        Edit(
            f"{_OFFLOAD}.partition_all_parameters",
            after="self.get_param_coordinator().release_and_reset_all(self.module)",
            code="for sub_module in self.module.modules():\n    sub_module.ds_grads_remaining = 0",
        ),
    ),
    symptom="",
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

_STEPS = 2


def reproduce(lab: Lab) -> str:
    gathered, parameters = _train(lab, checkpointing=False)
    assert gathered == [0] * _STEPS, f"without checkpointing {gathered} parameters stay gathered after a backward pass"
    gathered, recomputed = _train(lab, checkpointing=True)
    difference = lab.reference.largest_difference(recomputed, parameters)
    assert difference.absolute == 0.0, f"after {_STEPS} steps {difference}"
    seen = f"after the backward passes of {_STEPS} steps {gathered} of {len(parameters)} parameters are still gathered"
    if gathered == [len(parameters)] * _STEPS:
        raise BugPresent(f"{seen}, none without checkpointing")
    assert gathered == [0] * _STEPS, seen
    return f"{seen}, as without checkpointing"


def _train(lab: Lab, checkpointing: bool) -> tuple[list[int], dict[str, Any]]:
    """Number of parameters still gathered after each backward pass, and the parameters at the end."""
    torch = lab.torch
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(lab.models.MLP):  # type: ignore[misc,name-defined]
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
        inputs, targets = (tensor.to(lab.device) for tensor in lab.models.regression_batch(rank=0, step=step))
        # on no release does a module whose input needs no gradient see the end of its backward pass
        engine.backward(torch.nn.functional.mse_loss(engine(inputs.requires_grad_()), targets))
        gathered.append(sum(parameter.ds_status.name == "AVAILABLE" for parameter in model.parameters()))
        engine.step()
    return gathered, lab.parameters(engine)
