"""Muon with ZeRO-1/2 and optimizer offload trains with plain SGD.

Why: ZeRO computes Muon's update where it makes a rank's part of the gradients on the GPU. With offload that part is
    made elsewhere, on the CPU, and the optimizer's step, which expects the update, takes the gradient: the matrices are
    trained by SGD with Muon's learning rate, without momentum.
How: before the norm each rank replaces the gradients of its matrices by their updates; ranks that share a matrix sum
    its gradient. Not covered, with a warning: fp16 of torch_autocast, `elastic_checkpoint`, ZenFlow, subclasses of the
    optimizer.
Changes: the updates of matrices, and memory and checkpoints: their momentum is stored as without offload; one without
    it begins at zero. To go on without offload in half precision takes muon_momentum_restored_in_fp32, as with any
    momentum of Muon.
Workaround: Scripts turn offload off, or pass an optimizer of their own. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import CannotTell, Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OPTIMIZER = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"
_STEP = f"{_OPTIMIZER}.step"
_STATE = "momentum_buffer"


def orthogonalize(optimizer: Any, scale: Any) -> None:
    """Replace the gradients of this rank's matrices by Muon's updates, and their norms. scale: of the gradients.

    Which collectives are made depends only on what the ranks of a group have in common.
    """
    matrices = {
        number: [each for each in optimizer.round_robin_bit16_groups[number] if _is_matrix(each)]
        for number, group in enumerate(optimizer.optimizer.param_groups)
        if group.get("use_muon")
    }
    if not any(matrices.values()) or not _covered(optimizer):
        return
    import contextlib

    import torch._dynamo
    from deepspeed.runtime.zero.muon.original_muon import muon_update

    took_effect(__name__, "matrices got Muon's update, not that of plain SGD")
    compiled = hasattr(muon_update, "_torchdynamo_orig_callable")
    # a machine without a compiler: without the patch nothing was compiled here
    tolerant = torch._dynamo.config.patch(suppress_errors=True) if compiled else contextlib.nullcontext()
    with tolerant, torch.no_grad():
        for group, parameters in matrices.items():
            if parameters:
                _update(optimizer, group, parameters, float(scale))


def _is_matrix(parameter: Any) -> bool:
    """Whether ZeRO without offload gives it Muon's update."""
    return bool(getattr(parameter, "use_muon", False) and parameter.dim() > 1 and parameter.numel())


def _covered(optimizer: Any) -> bool:
    from deepspeed.runtime.zero.muon.muon_optimizer import MuonWithAuxAdam

    from dsfix.log import warn_repeatedly

    if not isinstance(optimizer.optimizer, MuonWithAuxAdam):
        return False
    if type(optimizer.optimizer) is not MuonWithAuxAdam:
        reason = f"the optimizer is {type(optimizer.optimizer).__name__}, which may have an update of its own"
    elif getattr(optimizer, "torch_autocast_gradscaler", None):
        reason = "torch_autocast in fp16 unscales the gradient only after Muon's update of it"
    elif optimizer.elastic_checkpoint:
        reason = "elastic_checkpoint could not store Muon's momentum"
    elif getattr(optimizer, "zenflow", False):
        reason = "ZenFlow has a step of its own"
    else:
        return True
    warn_repeatedly(
        __name__,
        f"muon_offload_is_sgd: matrices are trained with plain SGD, as without dsfix: {reason}. Without offload, Muon "
        "works",
    )
    return False


def _update(optimizer: Any, group: int, matrices: list[Any], scale: float) -> None:
    import inspect

    import torch
    from deepspeed import comm
    from deepspeed.runtime.zero.muon.original_muon import muon_update

    options = optimizer.optimizer.param_groups[group]
    known = inspect.signature(muon_update).parameters
    partition = optimizer.single_partition_of_fp32_groups[group]
    norms = optimizer.norm_for_param_grads
    places, size = {}, 0  # of the momentum, which has whole matrices
    for parameter in optimizer.params_in_partition[group]:
        places[optimizer.get_param_id(parameter)] = size
        size += parameter.numel()
    state = optimizer.optimizer.state[partition]
    if _STATE not in state or state[_STATE].numel() - size not in (0, 1):
        # 0.19.8 goes on with what has the size of the partition, and hangs unless all ranks have it or none
        longer = size == partition.numel() and not _alike(optimizer, group)
        state[_STATE] = torch.zeros(size + longer, dtype=partition.dtype, device=partition.device)
    for parameter in matrices:
        number = optimizer.get_param_id(parameter)
        own = number in places
        shared = len(optimizer.param_to_partition_ids[group][number]) > 1
        if not own and not shared:
            continue
        gradient = torch.zeros(parameter.shape, dtype=partition.dtype, device=parameter.device)
        if own:
            _, source, place, length = optimizer.grad_position[number]
            part = partition.grad.view(-1).narrow(0, place, length)
            if number in norms:  # else it is unused in this step, and its gradient that of an older one
                gradient.view(-1).narrow(0, source, length).copy_(part).div_(scale)
        if shared:
            comm.all_reduce(gradient, group=optimizer.real_dp_process_group[group])
        if not own:
            continue
        kept = state[_STATE].narrow(0, places[number], parameter.numel())
        momentum = torch.empty_like(gradient).copy_(kept.view(parameter.shape))
        says = {"ns_method": options.get("ns_method"), "is_expert_group": getattr(parameter, "is_expert_group", None)}
        says = {name: value for name, value in says.items() if name in known and value is not None}
        update = muon_update(gradient, momentum, options["momentum"], **says)
        kept.copy_(momentum.view(-1))
        # what DeepSpeed divides it by may have grown
        update = update.reshape(-1).narrow(0, source, length).to(partition.dtype) * float(optimizer.loss_scale)
        part.copy_(update)
        if number in norms or optimizer.ignore_unused_parameters:
            norms[number] = update.double().norm(2)


def _alike(optimizer: Any, group: int) -> bool:
    """Whether each rank of the group has whole parameters only, and nothing else."""
    owners = optimizer.param_to_partition_ids[group].values()
    numel = sum(parameter.numel() for parameter in optimizer.round_robin_bit16_groups[group])
    ranks = {rank for each in owners for rank in each}
    return all(len(each) == 1 for each in owners) and numel == len(ranks) * int(optimizer.partition_size[group])


PATCH = Patch(
    title="Muon + ZeRO-1/2 + optimizer offload trains with plain SGD",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.17.6,<0.19.8"},
    changes=(
        Edit(
            _STEP,
            before="scaled_global_grad_norm = self.scaled_global_norm()",
            code="if self.cpu_offload:\n    orthogonalize(self, prev_scale)",
            uses=(orthogonalize,),
        ),
    ),
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

    from ..moe._experts import run_eagerly

    run_eagerly()  # else the update is compiled on first use
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
