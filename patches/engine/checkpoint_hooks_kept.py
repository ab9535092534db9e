"""`non_reentrant_checkpoint` adds hooks to each parameter in each forward pass: steps get slower and slower.

Why: through 0.14.4 deepspeed.checkpointing.non_reentrant_checkpoint registers a hook on every leaf that the
    checkpointed function uses, parameters among them, and never removes it. All of them run in each backward pass, and
    each keeps the objects of its own forward pass. They only serve `synchronize_checkpoint_boundary` and `profile`.
How: as in 0.14.5, hooks are registered only if one of the two is on; then they still accumulate.
Workaround: Scripts clear the parameters' `_backward_hooks` after each step, or call torch's own checkpoint with
    `use_reentrant=False` instead. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_CHECKPOINT = "deepspeed.runtime.activation_checkpointing.checkpointing:non_reentrant_checkpoint"
_REGISTER = """
for leaf_tensor in leaf_tensors:
    leaf_tensor.register_hook(after_backward_hook)
"""

PATCH = Patch(
    title="deepspeed.checkpointing.non_reentrant_checkpoint leaks hooks: steps get slower and slower",
    severity=Severity.LEAK,
    affects={"deepspeed": ">=0.12.0,<0.14.5"},
    changes=(
        Edit(
            _CHECKPOINT,
            replace=_REGISTER,
            code=(
                "if PROFILE_TIME or SYNCHRONIZE:\n"
                "    for leaf_tensor in leaf_tensors:\n"
                "        leaf_tensor.register_hook(after_backward_hook)"
            ),
            effect="no unneeded hooks were added to parameters",
            when="len(leaf_tensors) > 0 and not (PROFILE_TIME or SYNCHRONIZE)",
        ),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/5781": "fixed in 0.14.5"},
    fixed_in="0.14.5",
    fixed=(Source(_CHECKPOINT, "if PROFILE_TIME or SYNCHRONIZE:\n    ..."),),
)

_STEPS, _LEARNING_RATE = 4, 0.1


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    checkpointing = lab.deepspeed.checkpointing

    class Model(lab.models.MLP):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            for block in self.blocks:
                x = checkpointing.non_reentrant_checkpoint(block, x)
            return self.head(x)

    if not hasattr(checkpointing, "non_reentrant_checkpoint"):
        raise CannotTell("this release has no non_reentrant_checkpoint")
    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(_STEPS)]
    model = lab.models.MLP()
    right = lab.reference.train(model, [[batch] for batch in batches], model.loss, "SGD", lr=_LEARNING_RATE)

    model = Model()
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    hooks = []
    for inputs, targets in batches:
        engine.backward(torch.nn.functional.mse_loss(engine(inputs.to(lab.device)), targets.to(lab.device)))
        engine.step()
        hooks.append(sum(len(parameter._backward_hooks or ()) for parameter in engine.module.parameters()))
    result = lab.reference.compare(lab.parameters(engine), right.parameters, after=f"after {_STEPS} steps")
    if hooks == sorted(set(hooks)):
        raise BugPresent(f"the parameters have more hooks after each step: {', '.join(map(str, hooks))}")
    return f"{result}, and have {hooks[-1]} hooks"
