"""Muon with ZeRO-1/2 in fp16: matrices hardly move, because their updates are divided by the loss scale.

Why: Muon's update of a matrix is the same for any loss scale. ZeRO puts it in place of the gradient, and then divides
    it by the loss scale, as it does gradients: with 65536, the default, matrices stand still. Clipping and the reported
    norm lose them, too. Auxiliary Adam's parameters are trained. Nothing fails.
How: before the division the update is multiplied by the loss scale, and so is its norm, as since 0.19.8. A group that
    has had a learning rate of 0.2, or of 0.0005 times a static loss scale, or whose schedule warms up to one, is left
    alone, with a warning: the rate makes up for the division.
Changes: matrices are trained, and clipping counts their updates, as in bf16; a lower learning rate that was tuned
    without the patch may be wrong. A checkpoint written without the patch can be resumed: its momentum is right.
Workaround: Scripts multiply Muon's learning rate by a static loss scale, or train in bf16 or with `"loss_scale": 1`.
    You can keep it, except a warm-up in the script's own code to such a rate, which is not seen before it is reached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import CannotTell, Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OPTIMIZER = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"
_NORM = "norm_groups.append(self.get_grad_norm_direct(self.averaged_gradients[i], self.params_in_partition[i]))"
_GRADIENT = "self.single_partition_of_fp32_groups[i].grad = single_grad_partition"

_HIGH = 0.2  # of learning rates
_LOW = 5e-4  # usual rates are not lower
_MADE_UP = "_dsfix_rates_made_up"  # of an optimizer: its groups that have had a rate that makes up for the division
_COMING = "_dsfix_rates_coming"  # of an optimizer: for each group the highest rate of its schedule


def keep_coming_rates(engine: Any) -> None:
    schedule = engine.lr_scheduler
    rates = getattr(schedule, "max_lrs", getattr(schedule, "org_lrs", ()))
    if hasattr(engine.optimizer, "bit16_groups") and isinstance(rates, (list, tuple)):
        vars(engine.optimizer)[_COMING] = rates


def lacks_scale(optimizer: Any, group: int) -> bool:
    """Whether a group's gradients are updates of Muon, without the loss scale. The same on all ranks."""
    muon = optimizer.optimizer
    if "muon" not in type(muon).__name__.lower() or optimizer.loss_scale == 1:
        return False
    parameters = optimizer.bit16_groups[group]
    if not parameters or not all(getattr(each, "use_muon", False) for each in parameters):
        return False
    if hasattr(optimizer.averaged_gradients[group], "flat_partition"):  # of DeepCompile, without an update
        return False
    options = muon.param_groups[group]
    made_up = vars(optimizer).setdefault(_MADE_UP, set())
    coming = vars(optimizer).get(_COMING, ())[group : group + 1]
    high = _HIGH if optimizer.dynamic_loss_scale else min(_HIGH, _LOW * optimizer.loss_scale)
    if max(options["lr"], options.get("initial_lr", 0), options.get("max_lr", 0), *coming) >= high:
        made_up.add(group)
    if group not in made_up:
        return True
    from dsfix.log import warn_repeatedly

    warn_repeatedly(
        __name__,
        f"Muon in fp16: updates are divided by the loss scale, as without dsfix: a learning rate of {high:g} or "
        "more seems to make up for it. Set the one of bf16 (0.02 is usual) and a dynamic loss scale, and they are no "
        "longer divided",
    )
    return False


def scaled_norm(optimizer: Any, group: int, norm: Any) -> Any:
    import torch

    if lacks_scale(optimizer, group):
        return torch.where(norm >= 0, norm * optimizer.loss_scale, norm)  # -1 means that it is not finite
    return norm


def scale_update(optimizer: Any, group: int, update: Any) -> None:
    if lacks_scale(optimizer, group):
        took_effect(__name__, "the updates of matrices were not divided by the loss scale")
        update.mul_(optimizer.loss_scale)


PATCH = Patch(
    title="Muon + ZeRO-1/2 in fp16: matrices hardly move, their updates are divided by the loss scale",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.17.6,<0.19.8"},
    changes=(
        Edit(
            "deepspeed.runtime.engine:DeepSpeedEngine._configure_lr_scheduler",
            before="log_dist(f'DeepSpeed LR Scheduler = {self.lr_scheduler}', ranks=[0])",
            code="keep_coming_rates(self)",
            uses=(keep_coming_rates,),
        ),
        Edit(
            f"{_OPTIMIZER}.scaled_global_norm",
            after=_NORM,
            code="norm_groups[-1] = scaled_norm(self, i, norm_groups[-1])",
            uses=(scaled_norm,),
        ),
        Edit(
            f"{_OPTIMIZER}.step",
            before=_GRADIENT,
            code="scale_update(self, i, single_grad_partition)",
            uses=(scale_update,),
        ),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/7509": "introduced in 0.17.6"},
    fixed_in="0.19.8",
    present=(
        Source(
            f"{_OPTIMIZER}.get_flat_partition",
            "getattr(tensor, 'use_muon', False) and 'muon' in self.optimizer.__class__.__name__.lower()",
        ),
    ),
    fixed=(Source(f"{_OPTIMIZER}.step", "self._muon_update_lacks_loss_scale(i)"),),
    config=lambda job: (
        job.optimizer == "muon" and job.stage in (1, 2) and job.may_be("fp16") and not job.offloads_optimizer
    ),
)

_RATE, _MOMENTUM, _SCALE, _CLIP = 0.1, 0.95, 256, 1.0


def reproduce(lab: Lab) -> str:
    import copy

    torch = lab.torch
    deepspeed = lab.deepspeed
    try:
        from deepspeed.runtime.zero.muon.original_muon import muon_update
    except ImportError:
        raise CannotTell(f"deepspeed {deepspeed.__version__} has no Muon") from None

    from ..moe._experts import run_eagerly

    run_eagerly()  # else the update is compiled on first use
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 16).half().float()  # fp16 represents its parameters
    before = model.weight.detach().clone()
    inputs = lab.models.regression_batch(rank=0, step=0, size=32)[0].to(lab.device).half()
    plain = copy.deepcopy(model).to(lab.device).half()
    loss = plain(inputs).float().square().mean() * _SCALE
    gradient, of_bias = torch.autograd.grad(loss, [plain.weight, plain.bias])
    update = muon_update(gradient.clone(), torch.zeros_like(gradient), _MOMENTUM).float().cpu()
    norm = float(torch.cat([update.flatten(), of_bias.float().cpu() / _SCALE]).norm())
    assert norm > 2 * _CLIP
    assert float(of_bias.float().norm()) / _SCALE < _CLIP
    config = {
        "train_micro_batch_size_per_gpu": 32,
        "gradient_clipping": _CLIP,
        "fp16": {"enabled": True, "loss_scale": _SCALE},
        "optimizer": {
            "type": "Muon",
            "params": {"lr": _RATE, "momentum": _MOMENTUM, "weight_decay": 0.0, "torch_adam": True},
        },
        "zero_optimization": {"stage": 2, "reduce_scatter": False},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    engine.backward(engine(inputs).float().square().mean())
    engine.step()
    after = deepspeed.utils.safe_get_full_fp32_param(engine.module.weight).cpu()
    # the update is computed with 8 or 11 bits of precision, and enlarges the smallest differences
    return lab.reference.compare(
        {"moved": (before - after) / _RATE},
        {"moved": update * (_CLIP / norm)},
        {"an update divided by the loss scale and not clipped": {"moved": update / _SCALE}},
        within=2e-2,
        after="after 1 step, by the learning rate:",
    )
