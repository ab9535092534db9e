"""Muon with ZeRO-1/2 and optimizer offload trains with plain SGD.

Why: ZeRO computes Muon's update where it makes a rank's part of the gradients on the GPU. With offload that part is
    made elsewhere, on the CPU, and the optimizer's step, which expects the update, takes the gradient: the matrices are
    trained by SGD with Muon's learning rate, without momentum.
How: before the step each rank replaces the gradients of its matrices by their updates, which are computed one at a time
    where the model is. Only for a matrix that ranks share the parts of its gradient and momentum are summed, and then
    by all ranks of the group, in the order of its matrices. As in PyTorch the gradient is unscaled and clipped before,
    and what is not a matrix is updated as without the patch; 0.19.8 clips the update.
Changes: the updates of matrices; memory, and the momentum in checkpoints, as muon_momentum: jobs without offload fail
    with another layout of theirs. Without it, with `elastic_checkpoint`, and in 0.19.8 it starts at zero. Not covered,
    with a warning: fp16 of torch_autocast, which is unscaled later, and subclasses of DeepSpeed's optimizer.
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
_STATE = "muon_momentum"


def orthogonalize(optimizer: Any, group: int, part: Any) -> None:
    """Replace the gradients in this rank's part of a group by Muon's updates, where it is one of Muon's.

    Which collectives are made depends only on what the ranks of the group have in common.
    """
    kinds = [kind.__name__ for kind in type(optimizer.optimizer).__mro__]
    if "MuonWithAuxAdam" not in kinds or not optimizer.optimizer.param_groups[group].get("use_muon"):
        return
    matrices = [
        parameter
        for parameter in optimizer.round_robin_bit16_groups[group]
        if getattr(parameter, "use_muon", False) and parameter.dim() > 1 and parameter.numel()
    ]
    if not matrices or not _covered(optimizer):
        return
    from deepspeed import comm

    took_effect(__name__, "matrices got Muon's update, not that of plain SGD")
    parts = part, _momentum(optimizer, group)
    for matrix in matrices:
        number = optimizer.get_param_id(matrix)
        own = optimizer.is_param_in_current_partition[number]
        shared = len(optimizer.param_to_partition_ids[group][number]) > 1
        if not own and not shared:
            continue
        _, source, place, size = optimizer.grad_position[number] if own else (group, 0, 0, 0)
        whole = [part.new_zeros(matrix.numel(), device=matrix.device) for _ in parts]
        for each, tensor in zip(whole, parts):
            each.narrow(0, source, size).copy_(tensor.narrow(0, place, size))
            if shared:
                comm.all_reduce(each, group=optimizer.real_dp_process_group[group])
        if own:
            update = _update(*whole, matrix, optimizer.optimizer.param_groups[group])
            for each, tensor in zip((update.reshape(-1), whole[1]), parts):
                tensor.narrow(0, place, size).copy_(each.narrow(0, source, size))


def _covered(optimizer: Any) -> bool:
    from deepspeed.runtime.zero.muon.muon_optimizer import MuonWithAuxAdam

    from dsfix.log import warn_repeatedly

    if not isinstance(optimizer.optimizer, MuonWithAuxAdam):
        return False
    if type(optimizer.optimizer) is not MuonWithAuxAdam:
        reason = f"the optimizer is {type(optimizer.optimizer).__name__}, which may have an update of its own"
    elif getattr(optimizer, "torch_autocast_gradscaler", None):
        reason = "torch_autocast in fp16 unscales the gradient only after Muon's update of it"
    else:
        return True
    warn_repeatedly(
        __name__,
        f"Muon with optimizer offload: matrices are trained by plain SGD, as without dsfix: {reason}",
    )
    return False


def _momentum(optimizer: Any, group: int) -> Any:
    """This rank's part of the momentum; it is made for all groups before DeepSpeed links the states to parameters."""
    import torch

    # an elastic checkpoint is read as if all groups had the states of the first
    outside = optimizer.__dict__.setdefault("_dsfix_muon", {}) if optimizer.elastic_checkpoint else None
    states = []
    for partition, options in zip(optimizer.single_partition_of_fp32_groups, optimizer.optimizer.param_groups):
        known = outside.setdefault(len(states), {}) if outside is not None else optimizer.optimizer.state[partition]
        if options.get("use_muon") and getattr(known.get(_STATE), "shape", None) != partition.shape:
            known[_STATE] = torch.zeros_like(partition)
        states.append(known)
    return states[group][_STATE]


def _update(gradient: Any, momentum: Any, matrix: Any, options: dict[str, Any]) -> Any:
    """Muon's update of a matrix; the momentum becomes that after it."""
    import inspect

    from deepspeed.runtime.zero.muon.original_muon import muon_update

    says = {
        "ns_method": options.get("ns_method"),
        "is_expert_group": getattr(matrix, "is_expert_group", None),
        "num_heads": getattr(matrix, "muon_num_heads", None),
    }
    known = inspect.signature(muon_update).parameters
    arguments = gradient.view(matrix.shape), momentum.view(matrix.shape), options["momentum"]
    says = {name: value for name, value in says.items() if name in known and value is not None}
    if not hasattr(muon_update, "_torchdynamo_orig_callable"):
        return muon_update(*arguments, **says)
    import torch._dynamo

    # a machine without a compiler: without the patch nothing was compiled here
    with torch._dynamo.config.patch(suppress_errors=True):
        return muon_update(*arguments, **says)


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
