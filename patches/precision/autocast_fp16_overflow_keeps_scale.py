"""torch_autocast in fp16 with ZeRO: after an overflow the loss scale stays, and every step is skipped.

Why: 0.19.8 skips a step whose norm is not finite before torch's GradScaler, which would lower the loss scale, sees the
    gradients. If gradients overflow with the scale of 65536 that a job begins with, or that has grown, then they do in
    each step, and nothing is trained any more. Earlier releases leave such steps to the GradScaler.
How: where the step is skipped the GradScaler's scale is multiplied by its backoff factor, as in a step that it skips
    itself. All ranks skip the same steps.
Changes: jobs go on after an overflow. Without one no number changes. A job that resumes begins with a scale of 65536,
    as before: it is not in the checkpoint.
Workaround: Scripts use torch_autocast in bf16, or call update() of engine.optimizer.torch_autocast_gradscaler with a
    lower scale. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import CannotTell, Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ZERO12 = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"
_ZERO3 = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3"
_UPDATE = "self._update_scale(self.overflow)"
_SKIPPED = (
    "if (self.dtype != torch.bfloat16 or self.check_grad_overflow) and is_invalid_grad_norm(scaled_global_grad_norm):\n"
    "    self.overflow = True"
)


def lower_scale(optimizer: Any) -> None:
    """After an overflow, on all ranks; it is rare, so that reading the scale from the device does not matter."""
    scaler: Any = getattr(optimizer, "torch_autocast_gradscaler", None)
    if not optimizer.overflow or getattr(scaler, "_scale", None) is None:  # none if it is not enabled
        return
    took_effect(__name__, "the loss scale was lowered after an overflow")
    scaler.update(scaler.get_scale() * scaler.get_backoff_factor())
    scaler._growth_tracker.zero_()


PATCH = Patch(
    title="torch_autocast in fp16 + ZeRO: after an overflow every step is skipped, nothing is trained any more",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.19.8"},
    changes=(
        Edit(f"{_ZERO12}.step", after=_UPDATE, code="lower_scale(self)", uses=(lower_scale,)),
        Edit(
            f"{_ZERO3}._loss_scale_update_and_overflow_cleanup",
            after=_UPDATE,
            code="lower_scale(self)",
            uses=(lower_scale,),
        ),
    ),
    present=(Source(f"{_ZERO12}.step", _SKIPPED),),
    config=lambda job: job.stage in (1, 2, 3) and job.may_be("torch_autocast"),
)

_RATE, _FACTOR, _STEPS = 0.01, 64, 8


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
    optimizer = torch.optim.SGD(plain.parameters(), lr=_RATE)
    scaler = torch.amp.GradScaler(lab.device.type)
    for _ in range(_STEPS):
        with torch.autocast(lab.device.type, torch.float16):
            output = plain(inputs)
        scaler.scale(output.float().square().mean() * _FACTOR).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert scaler.get_scale() < 65536, "no step of plain PyTorch overflowed"
    right = {name: each.detach().cpu() for name, each in plain.named_parameters()}
    assert any(bool((right[name] != before[name]).any()) for name in before), "plain PyTorch skipped all steps"

    for stage in (1, 3):
        config = {
            "train_micro_batch_size_per_gpu": 32,
            "gradient_clipping": 0.0,
            "torch_autocast": {"enabled": True, "dtype": "float16"},
            "optimizer": {"type": "SGD", "params": {"lr": _RATE}},
            "zero_allow_untested_optimizer": True,
            "zero_optimization": {"stage": stage},
        }
        engine = lab.initialize(copy.deepcopy(model), config)
        for _ in range(_STEPS):
            engine.backward(engine(inputs).float().square().mean() * _FACTOR)
            engine.step()
        get = lab.deepspeed.utils.safe_get_full_fp32_param
        result = lab.reference.compare(
            {name: get(each).cpu() for name, each in engine.module.named_parameters()},
            right,
            {"no step at all": before},
            within=1e-2,
            after=f"after {_STEPS} steps, the first with an overflow, with ZeRO-{stage}:",
        )
    return result
