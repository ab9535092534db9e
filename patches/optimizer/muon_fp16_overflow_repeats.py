"""Muon in fp16: after one step with an overflow every step is skipped, as its momentum stays nan.

Why: Muon adds gradients to its momentum before the step is known to be made. One gradient that is inf or nan makes the
    momentum, and from then on each update, nan: no step is made any more, and nothing is trained. A dynamic loss scale,
    which overflows from time to time by design, shrinks until "Current loss scale already at minimum" ends the job.
How: a gradient that is not finite is left out of the momentum, as since 0.19.7, and the step is still skipped. The
    finite gradients of other matrices are added in a skipped step, as before; 0.19.7 leaves these out, too.
Changes: fp16 jobs go on after an overflow. The momentum in a checkpoint that was written after one is nan: load an
    earlier one, or one without the optimizer's states. Without an overflow no number changes.
Workaround: Scripts train in bf16, or with a loss scale that never overflows. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_UPDATE = "deepspeed.runtime.zero.muon.original_muon:muon_update"
_MOMENTUM = "momentum.lerp_(grad, 1 - beta)"

PATCH = Patch(
    title="Muon in fp16: after one overflow every step is skipped, nothing is trained any more",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.17.6,<0.19.7"},
    changes=(
        Edit(
            _UPDATE,
            replace=_MOMENTUM,
            code="momentum.lerp_(torch.where(torch.isfinite(grad).all(), grad, momentum.to(grad.dtype)), 1 - beta)",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/8432": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/7509": "introduced in 0.17.6",
        "https://github.com/deepspeedai/DeepSpeed/pull/8435": "fixed in 0.19.7",
    },
    fixed_in="0.19.7",
    present=(Source(_UPDATE, _MOMENTUM),),
    fixed=(Source(_UPDATE, "grad_is_finite = torch.isfinite(grad).all()"),),
    config=lambda job: job.optimizer == "muon" and job.may_be("fp16"),
)

_RATE, _BETA, _SCALE = 0.1, 0.95, 256


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
    model = torch.nn.Linear(16, 16, bias=False).half().float()  # fp16 represents its parameters
    before = model.weight.detach().clone()
    inputs = lab.models.regression_batch(rank=0, step=0, size=32)[0].to(lab.device).half()
    plain = copy.deepcopy(model).to(lab.device).half()
    [gradient] = torch.autograd.grad(plain(inputs).float().square().mean() * _SCALE, [plain.weight])
    update = muon_update(gradient.clone(), torch.zeros_like(gradient), _BETA).float().cpu()
    config = {
        "train_micro_batch_size_per_gpu": 32,
        "fp16": {"enabled": True, "loss_scale": _SCALE},
        "optimizer": {"type": "Muon", "params": {"lr": _RATE, "momentum": _BETA, "weight_decay": 0.0}},
        "zero_optimization": {"stage": 2, "reduce_scatter": False},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for factor in (1e6, 1):  # the first overflows
        engine.backward(engine(inputs).float().square().mean() * factor)
        engine.step()
    if engine.skipped_steps > 1:
        raise BugPresent("Muon: a step without an overflow is skipped, after one with an overflow")
    assert engine.skipped_steps == 1, engine.skipped_steps
    after = deepspeed.utils.safe_get_full_fp32_param(engine.module.weight).cpu()
    # the update is computed with 8 or 11 bits of precision, and enlarges the smallest differences
    return lab.reference.compare(
        {"moved": (before - after) / _RATE},
        {"moved": update},
        within=2e-2,
        after="after a step with an overflow and one without, by the learning rate:",
    )
