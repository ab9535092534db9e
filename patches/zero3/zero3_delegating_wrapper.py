"""ZeRO-3 + PEFT's modules_to_save: "object has no attribute 'ds_grads_remaining'".

Why: ZeRO-3 creates autograd functions for each module's backward hooks, unless `hasattr` finds them. A wrapper whose
    `__getattr__` delegates to the inner module (PEFT's ModulesToSaveWrapper) appears to have its child's functions, and
    its hooks count on the child: AttributeError in the first forward pass. Through 0.16.4 the functions were created in
    the forward pass, outer module first, and the wrapper got its own.
How: looks them up in the module's own `__dict__`, as upstream does since 0.19.3, for both functions and the counter.
Workaround: Scripts make the wrapper's `__getattr__` reject the names of these functions, or set the counter on each
    module, or on the inner module with the wrapper's. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_REGISTER = "deepspeed.runtime.zero.parameter_offload:DeepSpeedZeRoOffload._register_deepspeed_module"
_COUNTER = "'applied_pre_backward_ref_cnt'"

PATCH = Patch(
    title="ZeRO-3 + PEFT's modules_to_save: AttributeError, no attribute 'ds_grads_remaining'",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.16.5,<0.19.3"},
    changes=(
        Edit(
            _REGISTER,
            replace="not hasattr(module, 'pre_bwd_fn')",
            code="'pre_bwd_fn' not in module.__dict__",
        ),
        Edit(
            _REGISTER,
            replace="not hasattr(module, 'post_bwd_fn')",
            code="'post_bwd_fn' not in module.__dict__",
        ),
        Edit(
            _REGISTER,
            replace=f"not hasattr(ctx.module, {_COUNTER})",
            code=f"{_COUNTER} not in ctx.module.__dict__",
            effect="a wrapper got its own hooks (unpatched: no attribute 'ds_grads_remaining')",
            # its first forward pass, with an input that requires a gradient
            when=f"{_COUNTER} not in ctx.module.__dict__ and ctx.module.__dict__.get('ds_grads_remaining', 0) > 0"
            f" and getattr(ctx.module, {_COUNTER}, 0) == 1",
        ),
    ),
    symptom="has no attribute 'ds_grads_remaining'",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/7203": "reported",
        "https://github.com/deepspeedai/DeepSpeed/issues/7615": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/7062": "introduced",
        "https://github.com/deepspeedai/DeepSpeed/pull/8144": "fixed in 0.19.3",
    },
    fixed_in="0.19.3",
    present=(
        Source(  # through 0.16.4 the check is in a hook
            _REGISTER,
            "self.forward_hooks.append(module.register_forward_hook(_post_forward_module_hook))\n"
            "if not hasattr(module, 'pre_bwd_fn'):\n    ...",
        ),
    ),
    fixed=(Source(_REGISTER, "'pre_bwd_fn' not in module.__dict__"),),
)

_LEARNING_RATE = 0.1
_STEPS = 3


def reproduce(lab: Lab) -> str:
    torch = lab.torch

    class Delegating(torch.nn.Module):  # type: ignore[misc,name-defined]
        """Delegates missing attributes to the inner module, like PEFT's ModulesToSaveWrapper."""

        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self._modules["inner"], name)

        def forward(self, x: Any) -> Any:
            return self.inner(x)

    def wrapped() -> Any:
        model = lab.models.MLP()
        model.blocks[1] = Delegating(model.blocks[1])
        model.head = Delegating(model.head)
        return model

    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(_STEPS)]
    model = wrapped()
    right = lab.reference.train(model, [[batch] for batch in batches], model.loss, "SGD", lr=_LEARNING_RATE)

    model = wrapped()
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for inputs, targets in batches:
        try:
            outputs = engine(inputs.to(lab.device))
        except AttributeError as error:
            if "ds_grads_remaining" in str(error):
                raise BugPresent(f"in the first forward pass: {error}") from error
            raise
        engine.backward(torch.nn.functional.mse_loss(outputs, targets.to(lab.device)))
        engine.step()
    return lab.reference.compare(lab.parameters(engine), right.parameters, after=f"after {_STEPS} steps")
