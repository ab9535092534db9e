"""Muon with ZeRO-1/2 and torch_autocast in fp16: matrices hardly move, their updates are divided by the loss scale.

Why: Muon's update of a matrix is the same for any loss scale. ZeRO puts it in place of the gradient, and then torch's
    GradScaler divides it by the loss scale, as it does gradients: with 65536, its first one, matrices stand still.
    Auxiliary Adam's parameters are trained. Nothing fails. 0.19.8 repaired it for the engine's own fp16 only.
How: the update is multiplied by the loss scale when it takes the gradient's place, so clipping and the norm see it as
    they see gradients. A group that has had a learning rate of 0.2 is left alone, with a warning: the rate makes up for
    the division. Optimizer offload and ZeRO-3 are not covered.
Changes: matrices are trained as with torch_autocast in bf16; a lower learning rate that was tuned without the patch may
    be wrong. A checkpoint written without the patch can be resumed: its momentum is right.
Workaround: Scripts multiply Muon's learning rate by the loss scale, or use torch_autocast in bf16. You can keep it,
    except a warm-up to such a rate, which is not seen before it is reached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import CannotTell, Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OPTIMIZER = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"
_EPILOGUE = f"{_OPTIMIZER}.independent_gradient_partition_epilogue"
_PARTITION = (
    "self.averaged_gradients[i] = self.get_flat_partition(self.params_in_partition[i], self.first_offset[i],"
    " self.partition_size[i], dtype=self.gradient_accumulation_dtype,"
    " device=get_accelerator().current_device_name(), param_group_idx=i, return_tensor_list=True)"
)
_HIGH = 0.2  # of learning rates
_MADE_UP = "_dsfix_autocast_rates_made_up"  # of an optimizer: its groups that have had a higher rate


def scale_updates(optimizer: Any, group: int) -> None:
    """Multiply a group's updates of Muon, which are where gradients are, by torch's loss scale. No synchronization."""
    scaler = optimizer.torch_autocast_gradscaler
    scale = getattr(scaler, "_scale", None)  # None: no loss was scaled; one that is not enabled has none
    if scale is None or "muon" not in type(optimizer.optimizer).__name__.lower():
        return
    parameters = optimizer.bit16_groups[group]
    if not parameters or not all(getattr(each, "use_muon", False) for each in parameters):
        return
    options = optimizer.optimizer.param_groups[group]
    made_up = vars(optimizer).setdefault(_MADE_UP, set())
    if max(options["lr"], options.get("initial_lr", 0), options.get("max_lr", 0)) >= _HIGH:
        made_up.add(group)
    if group in made_up:
        from dsfix.log import warn_repeatedly

        warn_repeatedly(
            __name__,
            "Muon with torch_autocast in fp16: updates are divided by the loss scale, as without dsfix: a learning "
            f"rate of {_HIGH:g} or more seems to make up for it. Set the one of bf16 (0.02 is usual), and they are no "
            "longer divided",
        )
        return
    took_effect(__name__, "the updates of matrices were not divided by the loss scale")
    for update in optimizer.averaged_gradients[group]:
        update.mul_(scale.to(update.device))


PATCH = Patch(
    title="Muon + ZeRO-1/2 + torch_autocast in fp16: matrices hardly move, updates are divided by the loss scale",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.17.6"},
    changes=(Edit(_EPILOGUE, after=_PARTITION, code="scale_updates(self, i)", uses=(scale_updates,)),),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/7509": "introduced in 0.17.6"},
    present=(
        Source(f"{_OPTIMIZER}._optimizer_step", "self.torch_autocast_gradscaler.step(self.optimizer)"),
        Source(_EPILOGUE, _PARTITION),
    ),
    config=lambda job: (
        job.optimizer == "muon" and job.stage in (1, 2) and job.may_be("torch_autocast") and not job.offloads_optimizer
    ),
)

_RATE, _MOMENTUM = 0.1, 0.95


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
    model = torch.nn.Linear(16, 16)
    before = model.weight.detach().clone()
    inputs = lab.models.regression_batch(rank=0, step=0, size=32)[0].to(lab.device)
    plain = copy.deepcopy(model).to(lab.device)
    with torch.autocast(lab.device.type, torch.float16):
        output = plain(inputs)
    [gradient] = torch.autograd.grad(output.float().square().mean() * 1024, [plain.weight])
    update = muon_update(gradient.clone(), torch.zeros_like(gradient), _MOMENTUM).float().cpu()
    config = {
        "train_micro_batch_size_per_gpu": 32,
        "gradient_clipping": 0.0,
        "torch_autocast": {"enabled": True, "dtype": "float16"},
        "optimizer": {
            "type": "Muon",
            "params": {"lr": _RATE, "momentum": _MOMENTUM, "weight_decay": 0.0, "torch_adam": True},
        },
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": 2, "reduce_scatter": False},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    engine.backward(engine(inputs).float().square().mean())
    scale = engine.optimizer.torch_autocast_gradscaler.get_scale()
    engine.step()
    after = deepspeed.utils.safe_get_full_fp32_param(engine.module.weight).cpu()
    # the update is computed with 8 or 11 bits of precision, and enlarges the smallest differences
    return lab.reference.compare(
        {"moved": (before - after) / _RATE},
        {"moved": update},
        {"an update divided by the loss scale": {"moved": update / scale}},
        within=2e-2,
        after="after 1 step, by the learning rate:",
    )
