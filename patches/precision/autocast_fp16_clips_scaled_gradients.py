"""torch_autocast in fp16 with ZeRO: gradient_clipping clips gradients that still have the loss scale.

Why: torch's GradScaler divides gradients by the loss scale in the optimizer's step, but ZeRO clips before. Gradients
    are 65536 times too large then, and nearly all are clipped: to gradient_clipping / 65536 after the division. SGD
    stands still, Adam's epsilon outweighs the gradients of large models. get_global_grad_norm() has the scale, too.
    0.19.3 and later clip at 1.0 if the config does not say otherwise. Through 0.17.5 bf16 in ZeRO-1/2 has it as well.
How: the norm is divided by the loss scale before it is reported and compared with gradient_clipping. Left alone, with
    its norm, is a job that has had a gradient_clipping of 512 or more, or a learning rate of 100 or more: it makes up
    for the scale. So is the norm of a step with an overflow, which the GradScaler may skip on some ranks only.
Changes: gradients are clipped at gradient_clipping, as without ZeRO; norms are those of plain PyTorch. A learning rate
    that was tuned without the patch may be too high. A checkpoint written without it can be resumed.
Workaround: Scripts multiply gradient_clipping or the learning rate by the loss scale, turn clipping off (0), or use
    torch_autocast in bf16. You can keep it, except a warm-up to such a rate by a scheduler of DeepSpeed, which is not
    seen before it is reached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import CannotTell, Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ZERO12 = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"
_ZERO3 = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3"
_NORM_12 = "self._global_grad_norm = scaled_global_grad_norm / prev_scale"
_NORM_3 = "self._global_grad_norm = scaled_global_grad_norm / self.loss_scale"
_CLIPPING, _RATES = 512, 100  # a gradient_clipping and learning rate from which on they contain the loss scale
_MADE_UP = "_dsfix_autocast_made_up"  # of an optimizer that has had one: after an overflow they may be lower


def unscaled_norm(optimizer: Any, norm: Any, groups: Any = None) -> Any:
    """The norm of the gradients without torch's loss scale, which they still have; groups: the norms of the groups.

    After an overflow, for which a group's norm is -1, it stays: ranks without one make a step, which it would not clip.
    """
    scaler = getattr(optimizer, "torch_autocast_gradscaler", None)
    scale = getattr(scaler, "_scale", None)  # None: no loss was scaled; one that is not enabled has none
    if scale is None:
        return norm
    if optimizer.clip_grad >= _CLIPPING or _highest_rate(optimizer) >= _RATES:
        setattr(optimizer, _MADE_UP, True)
    if getattr(optimizer, _MADE_UP, False):
        return norm
    took_effect(__name__, "the norm of gradients was divided by the loss scale")
    if not hasattr(norm, "device"):
        return norm / float(scale)
    if groups:
        overflow = sum((each < 0) for each in groups) > 0
    else:  # ZeRO-1/2 does not keep them
        overflow = (norm.square() - len(optimizer.bit16_groups)).abs() < 1e-5
    return norm.where(overflow, norm / scale.to(norm.device))


def _highest_rate(optimizer: Any) -> float:
    groups = optimizer.optimizer.param_groups
    rates = [each.get(name) for each in groups for name in ("lr", "initial_lr", "max_lr")]
    return max((each for each in rates if isinstance(each, (int, float))), default=0)  # a tensor may be on the device


PATCH = Patch(
    title="torch_autocast in fp16 + ZeRO: gradient_clipping clips gradients that still have the loss scale",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.17.2"},
    changes=(
        Edit(
            f"{_ZERO12}.step",
            before=_NORM_12,
            code="scaled_global_grad_norm = unscaled_norm(self, scaled_global_grad_norm)",
            uses=(unscaled_norm,),
        ),
        Edit(
            f"{_ZERO3}.step",
            before=_NORM_3,
            code="scaled_global_grad_norm = unscaled_norm(self, scaled_global_grad_norm, norm_groups)",
            uses=(unscaled_norm,),
        ),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/6993": "introduced in 0.17.2"},
    present=(
        Source(f"{_ZERO12}._optimizer_step", "self.torch_autocast_gradscaler.step(self.optimizer)"),
        Source(f"{_ZERO12}.step", _NORM_12),
        Source(f"{_ZERO3}.step", _NORM_3),
    ),
    config=lambda job: job.stage in (1, 2, 3) and job.may_be("torch_autocast") and job.clips,
)

_RATE, _CLIP = 64, 0.125  # so that a step divided by the loss scale is not lost in rounding


def reproduce(lab: Lab) -> str:
    import copy

    torch = lab.torch
    try:
        import deepspeed.runtime.torch_autocast  # noqa: F401
    except ImportError:
        raise CannotTell(f"deepspeed {lab.deepspeed.__version__} has no torch_autocast with ZeRO") from None
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 16)
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    inputs = lab.models.regression_batch(rank=0, step=0, size=32)[0].to(lab.device)
    plain = copy.deepcopy(model).to(lab.device)
    with torch.autocast(lab.device.type, torch.float16):
        output = plain(inputs)
    gradients = torch.autograd.grad(output.float().square().mean() * 1024, list(plain.parameters()))
    gradients = [each.float().cpu() / 1024 for each in gradients]
    norm = float(torch.cat([each.flatten() for each in gradients]).norm())
    assert 2 * _CLIP < norm < 100, norm
    clipped = {name: each * (_CLIP / norm) for name, each in zip(before, gradients)}
    for stage in (1, 3):
        config = {
            "train_micro_batch_size_per_gpu": 32,
            "gradient_clipping": _CLIP,
            "torch_autocast": {"enabled": True, "dtype": "float16"},
            "optimizer": {"type": "SGD", "params": {"lr": _RATE}},
            "zero_allow_untested_optimizer": True,
            "zero_optimization": {"stage": stage},
        }
        engine = lab.initialize(copy.deepcopy(model), config)
        engine.backward(engine(inputs).float().square().mean())
        scaler = engine.optimizer.torch_autocast_gradscaler
        scale = 1 if scaler._scale is None else scaler.get_scale()  # ZeRO-3 scales no loss before 0.17.6
        engine.step()
        get = lab.deepspeed.utils.safe_get_full_fp32_param
        moved = {name: (before[name] - get(each).cpu()) / _RATE for name, each in engine.module.named_parameters()}
        result = lab.reference.compare(
            moved,
            clipped,
            {"gradients clipped with the loss scale": {name: each / scale for name, each in clipped.items()}},
            within=1e-2,
            after=f"after 1 step with ZeRO-{stage}, by the learning rate:",
        )
        reported = float(engine.get_global_grad_norm())
        assert abs(reported - norm) < 1e-2 * norm, f"ZeRO-{stage}: norm {reported}, not {norm}"
    return result
