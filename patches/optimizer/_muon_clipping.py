"""Muon's update in ZeRO-1 and ZeRO-2, computed from clipped gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packaging.version import Version

from dsfix.patch import RAN, Edit

if TYPE_CHECKING:
    from dsfix.job import Job
    from dsfix.lab import Lab

OPTIMIZER = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"
_IS_MUON = "getattr(tensor, 'use_muon', False) and 'muon' in self.optimizer.__class__.__name__.lower()"


class Raw(list):  # type: ignore[type-arg]
    """This rank's part of a group's gradients, of which Muon's update is to be computed. whole: its whole matrices."""

    whole: list[Any]


class Clipped(list):  # type: ignore[type-arg]
    """Whole matrices, clipped."""


def part(optimizer: Any, group: int, tensors: list[Any]) -> list[Any]:
    """The list for a rank's part of a group; `Raw` where Muon's update has to wait for the clipping."""
    gradients = optimizer.all_grad_tensors[group]
    muon = getattr(tensors[0], "use_muon", False) and "muon" in type(optimizer.optimizer).__name__.lower()
    if not muon or not optimizer.clip_grad or isinstance(gradients, Clipped):
        return []
    has_loss_scale(optimizer, group)
    raw = Raw()
    raw.whole = list(gradients)
    return raw


def has_loss_scale(optimizer: Any, group: int) -> None:
    """0.19.8 multiplies an update by the loss scale, which a gradient has."""
    if hasattr(optimizer, "groups_lacking_loss_scale"):
        optimizer.groups_lacking_loss_scale.discard(group)


def put_off(function: str) -> tuple[Edit, ...]:
    """The edits of a function that makes a rank's part of a group."""
    target = f"{OPTIMIZER}.{function}"
    return (
        Edit(
            target,
            before="buffer_idx = 0",
            code="flat_tensor_list = part(self, param_group_idx, tensor_list)",
            uses=(part,),
        ),
        Edit(target, replace=_IS_MUON, code=f"type(flat_tensor_list) is list and {_IS_MUON}"),
    )


def orthogonalize(optimizer: Any, group: int, norm: Any) -> None:
    """Replace a group's gradients by Muon's update, multiplied by what they are about to be divided by."""
    import torch
    from deepspeed.accelerator import get_accelerator  # type: ignore[import-not-found,unused-ignore]

    raw = optimizer.averaged_gradients[group]
    if not isinstance(raw, Raw):
        return
    device = get_accelerator().current_device_name()
    divided = torch.ones(1, device=device)
    optimizer.unscale_and_clip_grads([divided], norm)
    coefficient = divided * optimizer.loss_scale
    optimizer.all_grad_tensors[group] = Clipped((each * coefficient).to(each.dtype) for each in raw.whole)
    parts = optimizer.get_flat_partition(
        optimizer.params_in_partition[group],
        optimizer.first_offset[group],
        optimizer.partition_size[group],
        dtype=optimizer.gradient_accumulation_dtype,
        device=device,
        param_group_idx=group,
        return_tensor_list=True,
    )
    has_loss_scale(optimizer, group)
    if hasattr(optimizer, "_commit_muon_momentum"):  # since 0.19.7 after it is known that there is a step
        optimizer._commit_muon_momentum()
    optimizer.averaged_gradients[group] = [each.float() / divided for each in parts]


STEP = Edit(
    f"{OPTIMIZER}.step",
    before="self.free_grad_in_param_list(self.params_not_in_partition[i])",
    code="orthogonalize(self, i, scaled_global_grad_norm)",
    uses=(orthogonalize,),
    effect=RAN,
    when="hasattr(self.averaged_gradients[i], 'whole')",
)


def clips(job: Job) -> bool:
    """Whether a job clips Muon's update: 1.0 is the default from 0.19.3 on."""
    default = 1.0 if job.release >= Version("0.19.3") else 0.0
    clips = bool(job.get("gradient_clipping", default=default))
    return job.optimizer == "muon" and job.stage in (1, 2) and not job.offloads_optimizer and clips


_RATE, _MOMENTUM, _CLIP, _STEPS = 0.1, 0.95, 0.5, 3


def clipped(lab: Lab, stage: int = 2, offload: bool = False) -> str:
    """The reproduction: gradients that are clipped in some steps."""
    torch = lab.torch
    try:
        from deepspeed.runtime.zero.muon.original_muon import muon_update  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        from dsfix.patch import CannotTell

        raise CannotTell(f"deepspeed {lab.deepspeed.__version__} has no Muon") from None

    if hasattr(torch.compiler, "set_stance"):
        torch.compiler.set_stance("force_eager")  # else the update is compiled on first use
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 16, bias=False)
    # the second batch has large gradients
    batches = [lab.models.regression_batch(rank=0, step=step)[0] * (3 if step == 1 else 0.5) for step in range(_STEPS)]

    def trained(clips_update: bool) -> dict[str, Any]:
        weight = model.weight.detach().clone().requires_grad_()
        momentum = torch.zeros_like(weight)
        for inputs in batches:
            [gradient] = torch.autograd.grad((inputs @ weight.T).square().mean(), [weight])
            update = gradient if clips_update else gradient * min(1, _CLIP / float(gradient.norm()))
            update = muon_update(update.clone(), momentum, _MOMENTUM)
            if clips_update:
                update = update * min(1, _CLIP / float(update.norm()))
            with torch.no_grad():
                weight -= _RATE * update
        return {"weight": weight.detach()}

    right, wrong = trained(clips_update=False), trained(clips_update=True)
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0]),
        "gradient_clipping": _CLIP,
        "optimizer": {"type": "Muon", "params": {"lr": _RATE, "momentum": _MOMENTUM, "weight_decay": 0.0}},
        "zero_optimization": {
            "stage": stage,
            "reduce_scatter": False,
            **({"offload_optimizer": {"device": "cpu"}} if offload else {}),
        },
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for inputs in batches:
        engine.backward(engine(inputs.to(lab.device)).square().mean())
        engine.step()
    # the update is computed with 8 or 11 bits of precision, and enlarges the smallest differences
    message: str = lab.reference.compare(
        lab.parameters(engine), right, {"those of a clipped update": wrong}, within=0.1, after=f"after {_STEPS} steps"
    )
    return message
