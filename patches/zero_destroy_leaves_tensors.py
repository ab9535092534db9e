"""engine.destroy() leaves ZeRO's fp32 weights, optimizer states and gradient hooks in memory, as long as the model.

Why: each parameter of ZeRO-1/2 and of bf16's own optimizer has a link to its part of the fp32 weights, gradients and
    states, for safe_get_full_fp32_param and its like. Through 0.14.4 destroy() does not remove it: what is linked stays
    as long as the model, and as the parameters also have methods bound to themselves, often for good. Through 0.12.6
    the gradient hooks stay, too: a second engine of the same model runs those of the first one; ZeRO-3 fails in them.
How: as in 0.14.5, destroy() removes the links, but only those to its own optimizer: where another engine has been made
    of the same model, the links are that engine's. After destroy() the safe_get functions find no fp32 weights, as in
    0.14.5. Through 0.12.6 it lets go of the nodes that carry the hooks; the next forward pass makes new ones.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_DESTROY = "deepspeed.runtime.engine:DeepSpeedEngine.destroy"
_OPTIMIZERS = (
    "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.destroy",
    "deepspeed.runtime.bf16_optimizer:BF16_Optimizer.destroy",
)


def let_go(optimizer: Any) -> None:
    """Removes the parameters' links to the fp32 tensors of this optimizer, and hooks that nothing can remove."""
    own = vars(optimizer) if hasattr(optimizer, "__dict__") else {}
    if "_grad_acc_hooks" not in own:
        own.get("grad_accs", []).clear()
    flat = own.get("single_partition_of_fp32_groups") or own.get("fp32_groups_flat_partition") or ()
    storages = {each.untyped_storage().data_ptr() for each in flat}
    for group in own.get("bit16_groups") or own.get("bf16_groups") or ():
        for parameter in group:
            link = getattr(parameter, "_hp_mapping", None)
            if link is not None and link.hp_fragment.untyped_storage().data_ptr() in storages:
                parameter._hp_mapping = None


PATCH = Patch(
    title="engine.destroy() leaves ZeRO's fp32 weights, optimizer states and gradient hooks in memory",
    severity=Severity.LEAK,
    affects={"deepspeed": ">=0.12.0,<0.14.5"},
    changes=(
        Edit(
            _DESTROY,
            after=(
                "if self.optimizer is not None and hasattr(self.optimizer, 'destroy'):\n    self.optimizer.destroy()"
            ),
            code="let_go(self.optimizer)",
            uses=(let_go,),
        ),
    ),
    symptom=r"in reduce_partition_and_remove_grads\n[\s\S]*_DeepSpeedZeroOptimizer_Stage3__ipg_bucket_flat",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/4856": "reported",
        "https://github.com/deepspeedai/DeepSpeed/issues/5496": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/4858": "fixed in 0.13.0 (the hooks)",
        "https://github.com/deepspeedai/DeepSpeed/pull/5643": "fixed in 0.14.5",
    },
    fixed_in="0.14.5",
    fixed=(Source(_OPTIMIZERS[0], "p._hp_mapping = None"), Source(_OPTIMIZERS[1], "p._hp_mapping = None")),
)

_STEPS, _LEARNING_RATE = 3, 0.125


def reproduce(lab: Lab) -> str:
    import gc

    torch = lab.torch
    _ = lab.deepspeed  # from here on the collector sees what is made
    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(2 * _STEPS)]
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": 2},
    }
    model = lab.models.MLP()

    def trained(batches: Any, right: Any, when: str) -> tuple[str, Any]:
        engine = lab.initialize(model, config, model_parameters=model.parameters())
        for inputs, targets in batches:
            engine.backward(torch.nn.functional.mse_loss(engine(inputs.to(lab.device)), targets.to(lab.device)))
            engine.step()
        return lab.reference.compare(lab.parameters(engine), right.parameters, after=when), engine

    def right(steps: int) -> Any:
        copy = lab.models.MLP()
        return lab.reference.train(copy, [[batch] for batch in batches[:steps]], copy.loss, "SGD", lr=_LEARNING_RATE)

    first, engine = trained(batches[:_STEPS], right(_STEPS), f"after {_STEPS} steps")
    optimizer = weakref.ref(engine.optimizer)
    fp32 = weakref.ref(engine.optimizer.single_partition_of_fp32_groups[0])
    engine.destroy()
    del engine
    gc.collect()
    if optimizer() is not None and not hasattr(optimizer(), "_grad_acc_hooks"):
        raise BugPresent("after destroy() the gradient hooks keep the optimizer, and its fp32 weights")
    if any(getattr(each, "_hp_mapping", None) is not None for each in model.parameters()):
        raise BugPresent("after destroy() the model's parameters keep the fp32 weights")
    freed = "are freed" if fp32() is None else "are not linked to the model"
    second, _ = trained(batches[_STEPS:], right(2 * _STEPS), f"after {_STEPS} more with a second engine")
    return f"{first}, {second}; after destroy() the fp32 weights {freed}"
