"""Muon with ZeRO-1/2 and optimizer offload trains with plain SGD.

Why: ZeRO computes Muon's update where it makes a rank's part of the gradients on the GPU. With offload that part is
    made elsewhere, on the CPU, and the optimizer's step, which expects the update, takes the gradient: the matrices are
    trained by SGD with Muon's learning rate.
How: before the step each matrix and its momentum are gathered, one at a time, and the rank's part of the gradient is
    replaced by its part of Muon's update, which is computed where the model is, as 0.19.8 does. It is computed from the
    clipped gradient, as PyTorch does it, while 0.19.8 clips the update.
Changes: the updates of matrices; one all-reduce for each matrix on several ranks; a momentum buffer in memory and in
    checkpoints. A checkpoint written without the patch can be loaded: the momentum starts from zero.
Workaround: Scripts turn offload off, or pass an optimizer of their own. Both can stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import CannotTell, Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OPTIMIZER = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"
_STEP = f"{_OPTIMIZER}.step"
_CLIPPED = """
single_grad_partition = self.single_partition_of_fp32_groups[i].grad
self.unscale_and_clip_grads([single_grad_partition], scaled_global_grad_norm)
"""


def orthogonalize(optimizer: Any, group: int, part: Any) -> None:
    """Replace this rank's part of a group's gradients by its part of Muon's update."""
    import inspect

    import torch
    from deepspeed import comm
    from deepspeed.accelerator import get_accelerator
    from deepspeed.runtime.zero.muon.original_muon import muon_update

    matrices = [p for p in optimizer.round_robin_bit16_groups[group] if getattr(p, "use_muon", False)]
    if not matrices or "muon" not in type(optimizer.optimizer).__name__.lower():
        return
    took_effect(__name__, "matrices got Muon's update, not that of plain SGD")
    options = optimizer.optimizer.param_groups[group]
    known = inspect.signature(muon_update).parameters
    ns_method = {"ns_method": options["ns_method"]} if {"ns_method"} <= known.keys() & options.keys() else {}
    state = optimizer.optimizer.state[optimizer.single_partition_of_fp32_groups[group]]
    if "momentum_buffer" not in state or state["momentum_buffer"].numel() != part.numel():
        state["momentum_buffer"] = torch.zeros_like(part)
    ranks = optimizer.real_dp_process_group[group]
    for matrix in matrices:
        # the gradient and the momentum; zero where other ranks have them
        whole = torch.zeros(2, matrix.numel(), dtype=part.dtype, device=get_accelerator().current_device_name())
        number = optimizer.get_param_id(matrix)
        own = optimizer.is_param_in_current_partition[number]
        if own:
            _, source, place, size = optimizer.grad_position[number]
            kept = [tensor.narrow(0, place, size) for tensor in (part, state["momentum_buffer"])]
            for row, tensor in zip(whole, kept):
                row.narrow(0, source, size).copy_(tensor)
        if comm.get_world_size(group=ranks) > 1:
            comm.all_reduce(whole, group=ranks)
        gradient, momentum = (row.view(matrix.shape) for row in whole)
        if hasattr(matrix, "is_expert_group") and "is_expert_group" in known:
            ns_method["is_expert_group"] = matrix.is_expert_group
        update = muon_update(gradient, momentum, options["momentum"], **ns_method)
        if own:
            for row, tensor in zip((update.reshape(-1), whole[1]), kept):
                tensor.copy_(row.narrow(0, source, size))


PATCH = Patch(
    title="Muon + ZeRO-1/2 + optimizer offload trains with plain SGD",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.17.6,<0.19.8"},
    changes=(Edit(_STEP, after=_CLIPPED, code="orthogonalize(self, i, single_grad_partition)", uses=(orthogonalize,)),),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7509": "introduced in 0.17.6",
        "https://github.com/deepspeedai/DeepSpeed/issues/8463": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/8464": "fixed in 0.19.8",
    },
    fixed_in="0.19.8",
    present=(
        Source(
            f"{_OPTIMIZER}.get_flat_partition",
            "getattr(tensor, 'use_muon', False) and 'muon' in self.optimizer.__class__.__name__.lower()",
        ),
    ),
    fixed=(Source(_STEP, "self._apply_muon_updates_cpu_offload()"),),
    config=lambda job: job.optimizer == "muon" and job.stage in (1, 2) and job.offloads_optimizer,
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
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 16, bias=False)
    batches = [lab.models.regression_batch(rank=0, step=step, size=32)[0] for step in range(_STEPS)]

    def trained(orthogonalize: bool) -> dict[str, Any]:
        weight = model.weight.detach().clone().requires_grad_()
        momentum = torch.zeros_like(weight)
        for inputs in batches:
            [gradient] = torch.autograd.grad((inputs @ weight.T).square().mean(), [weight])
            update = muon_update(gradient.clone(), momentum, _MOMENTUM) if orthogonalize else gradient
            with torch.no_grad():
                weight -= _RATE * update
        return {"weight": weight.detach()}

    right, wrong = trained(orthogonalize=True), trained(orthogonalize=False)
    config = {
        "train_micro_batch_size_per_gpu": 32,
        "optimizer": {"type": "Muon", "params": {"lr": _RATE, "momentum": _MOMENTUM, "weight_decay": 0.0}},
        "zero_optimization": {"stage": 2, "reduce_scatter": False, "offload_optimizer": {"device": "cpu"}},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for inputs in batches:
        engine.backward(engine(inputs.to(lab.device)).square().mean())
        engine.step()
    # the update is computed with 8 or 11 bits of precision, and enlarges the smallest differences
    return lab.reference.compare(
        lab.parameters(engine), right, {"those of plain SGD": wrong}, within=2e-2, after=f"after {_STEPS} steps"
    )
