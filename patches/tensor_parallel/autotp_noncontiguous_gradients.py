"""AutoTP training: a gradient that is not contiguous is not summed across the tensor-parallel ranks.

Why: in the backward pass of a column-parallel layer DeepSpeed reduces `grad_output.contiguous()` in place, and returns
    `grad_output`. If that is not contiguous, the sum is in a copy that is dropped, and each rank goes on with its own
    part. PyTorch returns such a gradient for a linear layer whose input is stored transposed: `x.t()`, or patch
    embeddings and convolutional features of a single sample, `x.flatten(2).transpose(1, 2)`.
How: the copy that is reduced is returned. A contiguous gradient is reduced in place, as before, and the collectives
    stay the same.
Changes: the gradients of all that the input of such a layer is computed from; parameters that should be the same on
    all ranks of a group have drifted apart. Resumed training goes on with what the checkpoint contains.
Workaround: Scripts call `.contiguous()` on the layer's input, or use more than one sample. You can keep it. A script
    that sums these gradients over the ranks itself must no longer do so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_BACKWARD = "deepspeed.module_inject.layers:ColumnParallel.backward"
_REDUCE = "dist.all_reduce(grad_output.contiguous(), group=ctx.group)"

PATCH = Patch(
    title="AutoTP training: gradients that are not contiguous are not summed across tensor-parallel ranks",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.16.4"},
    changes=(
        Edit(
            _BACKWARD,
            before=_REDUCE,
            code="grad_output = grad_output.contiguous()",
            effect="a gradient was summed across tensor-parallel ranks (unpatched: each rank's own part)",
            when="not grad_output.is_contiguous()",
        ),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/7004": "introduced in 0.16.4"},
    present=(Source(_BACKWARD, _REDUCE),),
    ranks=2,
)

_STEPS, _LEARNING_RATE = 3, 0.1


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    torch = lab.torch
    from . import _autotp as autotp

    def images(step: int) -> Any:
        return torch.randn(1, 3, 4, 4, generator=torch.Generator().manual_seed(step))

    def train(model: Any) -> dict[str, Any]:
        optimizer = torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE)
        for step in range(_STEPS):
            model(images(step)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return embedding(model)

    def embedding(model: Any) -> dict[str, Any]:
        return {name: each.detach().cpu() for name, each in model.embedding.named_parameters()}

    right, wrong = train(autotp.image_model()), train(autotp.image_model(lab.rank))
    if not hasattr(lab.deepspeed, "tp_model_init"):
        raise CannotTell(f"deepspeed {lab.deepspeed.__version__} has no AutoTP training")
    model = autotp.image_model()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": 0},
        "tensor_parallel": {"autotp_size": 2},
    }
    with autotp.names_of_transformers():
        model = lab.deepspeed.tp_model_init(model, tp_size=2, dtype=torch.float32)
        engine = lab.initialize(model, config, model_parameters=model.parameters())
    for step in range(_STEPS):
        engine.backward(engine(images(step).to(lab.device)).pow(2).mean())
        engine.step()
    return lab.reference.compare(
        embedding(engine.module),
        right,
        {"those of this rank's own gradients": wrong},
        after=f"after {_STEPS} steps",
    )
