"""Muon without ZeRO trains with plain SGD.

Why: the optimizer's step takes the gradient of a matrix for Muon's update: with ZeRO it is, the ZeRO optimizer has
    orthogonalized it before. Without ZeRO nobody has, and the momentum is not used either: the matrices are trained by
    SGD with Muon's learning rate.
How: for parameters that have more than one dimension, which are the model's own, the step computes Muon's update, with
    a momentum buffer in the optimizer's state, as in 0.19.7 and later. Flat partitions have one dimension and are
    stepped as before: those of ZeRO, where the update is in the gradient already, and those of BF16_Optimizer (bf16
    with ZeRO-1 and fp32 accumulation, pipelines in bf16), where later releases train with SGD as well.
Changes: the updates of matrices, and a momentum buffer of each matrix's size in memory and in checkpoints. A checkpoint
    written without the patch can be loaded: the momentum starts from zero. From 0.18.3 on the update is compiled at the
    first step; without a compiler torch warns and runs it as it is.
Workaround: Scripts pass a Muon of their own, such as torch.optim.Muon, or turn ZeRO-1 on. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import CannotTell, Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_STEP = "deepspeed.runtime.zero.muon.muon_optimizer:MuonWithAuxAdam.step"


def gradient_or_update(optimizer: Any, group: dict[str, Any], parameter: Any) -> Any:
    """Muon's update of a parameter with several dimensions; the gradient of one that has one."""
    import inspect

    import torch
    from deepspeed.runtime.zero.muon.original_muon import muon_update

    if parameter.dim() < 2 or not parameter.numel():
        return parameter.grad
    took_effect(__name__, "matrices got Muon's update, not that of plain SGD")
    if parameter.grad is None:  # unused in this step: its momentum goes on
        parameter.grad = torch.zeros_like(parameter)
    state = optimizer.state[parameter]
    if "momentum_buffer" not in state:
        state["momentum_buffer"] = torch.zeros_like(parameter)
    options = {"ns_method": group.get("ns_method"), "is_expert_group": getattr(parameter, "is_expert_group", None)}
    known = inspect.signature(muon_update).parameters  # the group may be that of a later release's checkpoint
    options = {name: value for name, value in options.items() if name in known and value is not None}
    arguments = parameter.grad, state["momentum_buffer"], group["momentum"]
    if not hasattr(muon_update, "_torchdynamo_orig_callable"):
        return muon_update(*arguments, **options)
    import torch._dynamo

    # a machine without a compiler: without the patch nothing was compiled here
    with torch._dynamo.config.patch(suppress_errors=True):
        return muon_update(*arguments, **options)


PATCH = Patch(
    title="Muon without ZeRO trains with plain SGD",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.17.6,<0.19.7"},
    changes=(
        Edit(
            _STEP,
            replace="p.add_(p.grad.reshape(p.shape), alpha=-group['lr'])",
            code="p.add_(gradient_or_update(self, group, p).reshape(p.shape), alpha=-group['lr'])",
            uses=(gradient_or_update,),
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7509": "introduced in 0.17.6",
        "https://github.com/deepspeedai/DeepSpeed/issues/8441": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/8442": "fixed in 0.19.7",
    },
    fixed_in="0.19.7",
    fixed=(Source(_STEP, "p.add_(update.reshape(p.shape), alpha=-group['lr'])"),),
    config=lambda job: job.optimizer == "muon" and job.stage == 0,
)

_RATE, _MOMENTUM, _STEPS = 0.1, 0.95, 2


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    deepspeed = lab.deepspeed
    try:
        from deepspeed.runtime.zero.muon.original_muon import muon_update
    except ImportError:
        raise CannotTell(f"deepspeed {deepspeed.__version__} has no Muon") from None

    if hasattr(torch.compiler, "set_stance"):
        torch.compiler.set_stance("force_eager")  # else the update is compiled on first use
    model = torch.nn.Linear(16, 16, bias=False)
    inputs = [lab.models.regression_batch(rank=0, step=step, size=32)[0] for step in range(_STEPS + 1)]
    batches = list(zip(inputs, inputs[1:]))

    def trained(orthogonalize: bool) -> dict[str, Any]:
        weight = model.weight.detach().clone().requires_grad_()
        momentum = torch.zeros_like(weight)
        for inputs, targets in batches:
            loss = torch.nn.functional.mse_loss(inputs @ weight.T, targets)
            [gradient] = torch.autograd.grad(loss, [weight])
            update = muon_update(gradient.clone(), momentum, _MOMENTUM) if orthogonalize else gradient
            with torch.no_grad():
                weight -= _RATE * update
        return {"weight": weight.detach()}

    right, wrong = trained(orthogonalize=True), trained(orthogonalize=False)
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "Muon", "params": {"lr": _RATE, "momentum": _MOMENTUM, "weight_decay": 0.0}},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for batch in batches:
        inputs, targets = (tensor.to(lab.device) for tensor in batch)
        engine.backward(torch.nn.functional.mse_loss(engine(inputs), targets))
        engine.step()
    # the update is computed with 8 or 11 bits of precision, and enlarges the smallest differences
    return lab.reference.compare(
        lab.parameters(engine), right, {"those of plain SGD": wrong}, within=2e-2, after=f"after {_STEPS} steps"
    )
