"""Muon fails on a model with a two-dimensional convolution: The size of tensor a must match the size of tensor b.

Why: the update of a convolution's four-dimensional weight is computed as a matrix. Since 0.19.7 `muon_update` chooses
    between it and the gradient, which has four dimensions, so that a step of non-finite gradients is seen and skipped.
    The two shapes do not broadcast: the first step fails. With a kernel of size 1 they do, to a tensor of the square of
    the weight's elements: ZeRO-1 and ZeRO-2 come to the right update, the others to an IndexError.
How: gives the update the shape of the gradient.
Workaround: None; DeepSpeed sets `use_muon` on every weight with two or more dimensions, whatever the script has set.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_UPDATE = "deepspeed.runtime.zero.muon.original_muon:muon_update"
_CHOICE = "return torch.where(grad_is_finite, update, grad.to(orig_dtype))"
_MESSAGE = "must match the size of tensor"

PATCH = Patch(
    title="Muon + Conv2d: the first step fails, The size of tensor a must match the size of tensor b",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.19.7"},
    changes=(
        Edit(
            _UPDATE,
            before=_CHOICE,
            code="update = update.reshape(grad.shape)",
            effect="the update of a convolution kept the shape of its weight",
            when="update.shape != grad.shape",
        ),
    ),
    symptom=r"torch\.where\(grad_is_finite, update, grad\.to\(orig_dtype\)\)",
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/7509": "related: Muon in ZeRO-1/2"},
    present=(
        Source(_UPDATE, f"if update.dtype != orig_dtype:\n    update = update.to(orig_dtype)\n{_CHOICE}"),
        Source(_UPDATE, "if update.ndim == 4:\n    update = update.view(len(update), -1)"),
    ),
    config=lambda job: job.optimizer == "muon",
)

_RATE, _MOMENTUM = 0.1, 0.95


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    try:
        from deepspeed.runtime.zero.muon.original_muon import zeropower_via_newtonschulz5 as orthogonal
    except ImportError:
        raise CannotTell(f"deepspeed {lab.deepspeed.__version__} has no Muon") from None

    if hasattr(torch.compiler, "set_stance"):
        torch.compiler.set_stance("force_eager")  # else the update is compiled on first use
    for kernel in (3, 1):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(4, 8, kernel, bias=False), torch.nn.Flatten(), torch.nn.LazyLinear(8, bias=False)
        )
        inputs = torch.randn(8, 4, 5, 5)
        loss = model(inputs).square().mean()
        right = {}
        for name, weight in model.named_parameters():
            (gradient,) = torch.autograd.grad(loss, weight, retain_graph=True)
            gradient = gradient.lerp(gradient * (1 - _MOMENTUM), _MOMENTUM)
            update = orthogonal(gradient.reshape(len(gradient), -1), steps=5)
            right[name] = (weight - _RATE * update.reshape(weight.shape)).detach()
        lab.reference.compare(_train(lab, model, inputs), right, within=2e-2, after=f"kernel {kernel}:")
    return "after a step of Muon a convolution's weights match those computed from the gradient as a matrix"


def _train(lab: Lab, model: Any, inputs: Any) -> dict[str, Any]:
    config = {
        "train_micro_batch_size_per_gpu": len(inputs),
        "gradient_clipping": 0.0,
        "optimizer": {
            "type": "Muon",
            "params": {"lr": _RATE, "momentum": _MOMENTUM, "weight_decay": 0.0, "ns_method": "standard"},
        },
        "zero_optimization": {"stage": 2, "reduce_scatter": False},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    try:
        engine.backward(engine(inputs.to(lab.device)).square().mean())
        engine.step()
    except RuntimeError as error:
        if _MESSAGE in str(error) and "muon_update" in [f.name for f in traceback.extract_tb(error.__traceback__)]:
            raise BugPresent(f"Muon, a convolution: RuntimeError: {error}") from error
        raise
    return lab.parameters(engine)
