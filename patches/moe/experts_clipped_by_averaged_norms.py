"""fp32 without ZeRO, MoE with ep_size > 1: gradients are clipped by an average of the ranks' norms.

Why: with expert parallelism each rank holds different experts, and the norm of all gradients needs the gradients of
    every rank. `clip_grad_norm_` averages the ranks' own norms: never more than the true norm, so that gradients are
    clipped too little, or not at all. Nothing fails.
How: the squares of the ranks' norms are summed, each gradient counted once however many ranks hold a copy of it. The
    same collective as before; only with ep_size > 1, without tensor parallelism, and for the 2-norm, the one that the
    engine uses. Everything else is unchanged.
Changes: jobs with gradient_clipping and ep_size > 1: steps whose norm exceeds the limit. A checkpoint written without
    the patch can be resumed.
Workaround: Scripts leave `gradient_clipping` out of the config and clip by hand before `engine.step()`.
    You can keep it. A `gradient_clipping` made smaller to make up for the average must be set back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_CLIP = "deepspeed.runtime.utils:clip_grad_norm_"


def shared_by_ranks(parameters: list[Any], norm_type: float, mpu: Any) -> bool:
    """Whether there are experts that not every rank holds, and all ranks are data-parallel; the same on all ranks."""
    from deepspeed import comm
    from deepspeed.utils import groups

    names = {_group(each) for each in parameters} - {None}
    ranks = comm.get_world_size()
    return (
        bool(names)
        and norm_type == 2.0
        and mpu is None
        and comm.get_world_size(group=groups._get_data_parallel_group()) == ranks
        and names <= set(groups._get_expert_data_parallel_group_dict())
        and any(_copies(name) < ranks for name in names)
    )


def _group(parameter: Any) -> Any:
    """The name of the group of an expert's parameter; None for others."""
    return None if getattr(parameter, "allreduce", True) else getattr(parameter, "group_name", "")


def _copies(name: str) -> int:
    from deepspeed.utils import groups

    return int(groups._get_expert_data_parallel_world_size(name))


def share_of_square(parameters: list[Any], norm: Any) -> Any:
    """What this rank adds to the square of the norm; like `norm`, a tensor or a number."""
    import torch
    from deepspeed import comm

    squares = []
    for each in parameters:
        name = _group(each)
        copies = comm.get_world_size() if name is None else _copies(name)
        squares.append(each.grad.detach().float().norm().square() / copies)
    total = torch.stack(squares).sum() if squares else torch.zeros(())
    return total.to(norm.device, norm.dtype).view_as(norm) if torch.is_tensor(norm) else total.item()


PATCH = Patch(
    title="fp32 without ZeRO + MoE with ep_size > 1: gradients are clipped by the average of the ranks' norms",
    severity=Severity.WRONG_RESULT,
    # through 0.14.0 experts_gradients_too_large_without_zero makes the gradients right whose norm this is
    affects={"deepspeed": ">=0.12.0"},
    changes=(
        Edit(
            _CLIP,
            before="parameters = list(filter(lambda p: p.grad is not None, parameters))",
            code="parameters = list(parameters)\nsums_squares = shared_by_ranks(parameters, float(norm_type), mpu)",
            uses=(shared_by_ranks,),
        ),
        Edit(
            _CLIP,
            replace="scaled_norm = total_norm * 1.0 / float(dist.get_world_size(group=pg))",
            code="if sums_squares:\n"
            "    scaled_norm = share_of_square(parameters, total_norm)\n"
            "else:\n"
            "    scaled_norm = total_norm * 1.0 / float(dist.get_world_size(group=pg))",
            uses=(share_of_square,),
        ),
        Edit(
            _CLIP,
            before="clip_coef = max_norm / (total_norm + 1e-6)",
            code="if sums_squares:\n    total_norm = total_norm ** 0.5",
            effect=RAN,  # whether the norm exceeds the limit
            when="sums_squares",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/8475": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/8476": "proposed fix, open",
        "https://github.com/deepspeedai/DeepSpeed/pull/8478": "proposed fix, open",
    },
    present=(Source(_CLIP, "scaled_norm = total_norm * 1.0 / float(dist.get_world_size(group=pg))"),),
    ranks=2,
    config=lambda job: job.experts is True and job.stage == 0 and not job.half and job.clips,
)

_LEARNING_RATE, _STEPS, _CLIP_AT = 0.5, 2, 0.2


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    torch, models, reference = lab.torch, lab.models, lab.reference
    from ._experts import Mixture, train

    steps = [[models.regression_batch(rank, step) for rank in range(2)] for step in range(_STEPS)]
    model = Mixture()
    right = reference.train(model, steps, model.loss, "SGD", clip=_CLIP_AT, lr=_LEARNING_RATE)
    assert min(right.gradient_norms) > 2 * _CLIP_AT, right.gradient_norms

    model = Mixture()
    for step in steps:
        losses = [model.loss(*batch) for batch in step]
        names, parameters = zip(*model.named_parameters())
        gradients = torch.autograd.grad(torch.stack(losses).mean(), parameters)
        norms = []
        for other in ("experts.1.", "experts.0."):
            held = [gradient for name, gradient in zip(names, gradients) if not name.startswith(other)]
            norms.append(torch.stack([gradient.norm() for gradient in held]).norm())
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients):
                parameter -= _LEARNING_RATE * gradient * _CLIP_AT / torch.stack(norms).mean()
    wrong = dict(model.named_parameters())

    seen = train(lab, 2, steps, _LEARNING_RATE, gradient_clipping=_CLIP_AT)
    return reference.compare(
        seen,
        {name: right.parameters[name] for name in seen},
        {"those of the averaged norm": {name: wrong[name] for name in seen}},
        after=f"after {_STEPS} steps",
    )
