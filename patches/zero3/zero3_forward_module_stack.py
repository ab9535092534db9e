"""ZeRO-3: a global list of running modules grows with each checkpoint, and keeps a destroyed engine's model alive.

Why: ZeRO-3 appends each module to a global list before its forward pass and removes the last entry after it. A forward
    pass that ends with an exception leaves its modules there: out of memory that the script catches, and every
    recomputation of non-reentrant checkpointing, which adds a few modules per checkpoint and step. A parameter that
    another module uses may then be registered with the wrong one. The model itself is appended with the engine and
    stays after `engine.destroy()`, and its parameters with it.
How: each module gets a forward hook that torch calls however the forward pass ended; it truncates the list to its
    previous length. `destroy()` removes the model.
Workaround: Scripts clear `FWD_MODULE_STACK` after a step, or when they drop the engine. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OFFLOAD = "deepspeed.runtime.zero.parameter_offload:DeepSpeedZeRoOffload"

PATCH = Patch(
    title="ZeRO-3: the list of running modules grows with each checkpoint; a destroyed engine's model stays in memory",
    severity=Severity.LEAK,
    # always_call needs torch 2.1
    affects={"deepspeed": ">=0.12.0", "torch": ">=2.1"},
    changes=(
        Edit(
            f"{_OFFLOAD}.pre_sub_module_forward_function",
            before="FWD_MODULE_STACK.append(sub_module)",
            # here, because hooks may be removed and restored, and their function has two names; a wrapper may delegate
            # attributes set on it to the inner module (axolotl makes CheckpointWrapper do so), its `__dict__` does not
            code="""
own = vars(sub_module)
if own.get("ds_unwind_hook") not in sub_module._forward_hooks:
    def unwind(module, args, output):
        lengths = vars(module)["ds_stack_lengths"]
        if lengths:
            del FWD_MODULE_STACK[lengths.pop():]
    self.forward_hooks.append(sub_module.register_forward_hook(unwind, always_call=True))
    own["ds_unwind_hook"] = self.forward_hooks[-1].id
    own["ds_stack_lengths"] = []
own["ds_stack_lengths"].append(len(FWD_MODULE_STACK))
""",
            effect=RAN,  # whether the recomputation ends early shows later
            when="torch._C._current_graph_task_id() != -1",
        ),
        Edit(
            f"{_OFFLOAD}.destroy",
            after="self._remove_module_hooks()",
            # a failed forward pass leaves its mark, and reading a parameter then accesses the end of the list
            code="""
if self.module in FWD_MODULE_STACK:
    FWD_MODULE_STACK.remove(self.module)
for module in self.module.modules():
    if getattr(module._parameters, "_in_forward", False):
        module._parameters._in_forward = False
""",
            effect="destroy() removed the model from the list of running modules (unpatched: it stays in memory)",
            when="self.module in FWD_MODULE_STACK",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/7204": "reported (destroy() only)",
    },
    present=(
        Source(_OFFLOAD.partition(":")[0], "FWD_MODULE_STACK = list()"),
        Source(
            f"{_OFFLOAD}.setup_zero_stage3_hooks",
            "global FWD_MODULE_STACK\nFWD_MODULE_STACK.append(self.module)",
        ),
    ),
)

_STEPS = 2


class _Refused(Exception):
    pass


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(lab.models.MLP):  # type: ignore[misc,name-defined]
        refuse = False

        def forward(self, x: Any) -> Any:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            if self.refuse:
                raise _Refused
            return self.head(x)

    model = Checkpointed(depth=3)
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    from deepspeed.runtime.zero.parameter_offload import (
        FWD_MODULE_STACK as STACK,
    )

    lengths = [len(STACK)]
    for step in range(_STEPS):
        inputs, targets = (tensor.to(lab.device) for tensor in lab.models.regression_batch(rank=0, step=step))
        engine.backward(torch.nn.functional.mse_loss(engine(inputs), targets))
        engine.step()
        lengths.append(len(STACK))
    model.refuse = True
    try:
        engine(inputs)
    except _Refused:
        lengths.append(len(STACK))
    engine.destroy()
    kept = any(module is model for module in STACK)
    first, *grown = (after - before for before, after in zip(lengths, lengths[1:]))
    seen = f"{_STEPS} steps with {len(model.blocks)} checkpoints add {first} and {grown[0]} modules to the list"
    seen = f"{seen}, a caught exception {grown[1]}; destroy() {'keeps' if kept else 'frees'} the model"
    if kept and first == grown[0] > 0 and grown[1] > 0:
        raise BugPresent(seen)
    assert [kept, first, *grown] == [False, 0, 0, 0], seen
    return seen
