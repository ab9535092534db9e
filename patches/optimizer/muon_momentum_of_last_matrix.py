"""Muon with ZeRO-1/2 in 0.19.7: only the last matrix of each group keeps its momentum.

Why: 0.19.7 computes the momentum in a copy, which becomes the momentum once it is known that the step is made. It makes
    that copy again for each matrix of a rank's part of a group, so that what the matrices before it have added is lost:
    their momentum stays zero, and their updates use only the present gradient.
How: the copy is made once for each group, as 0.19.8 does.
Changes: jobs with more than one matrix in a rank's part of a group. A checkpoint written without the patch can be
    resumed: the momentum that it lacks begins at zero.
Workaround: None.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OPTIMIZER = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"
_COPY = "self._muon_staging_momentum(flatten_copy, param_group_idx)"
_OWN_COPY = "self._muon_staging_momentum(flatten_copy, param_group_idx=param_group_idx)"  # is not found as the anchor
_OF_MATRIX = "0, buffer_idx, tensor.numel()).view(tensor.size())"

PATCH = Patch(
    title="Muon + ZeRO-1/2: only the last matrix of each group keeps its momentum",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": "==0.19.7"},
    changes=tuple(
        edit
        for function in ("get_flat_partition", "_get_flat_partition_unpadded")
        for edit in (
            Edit(
                f"{_OPTIMIZER}.{function}",
                before="buffer_idx = 0",
                effect="each matrix of a group kept its momentum",
                when="self._is_muon_group(tensor_list) and len(tensor_list) > 1",
                code=f"muon_momentum = {_OWN_COPY} if self._is_muon_group(tensor_list) else None",
            ),
            Edit(f"{_OPTIMIZER}.{function}", replace=_COPY, code="muon_momentum"),
        )
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/7509": "related: Muon in ZeRO-1/2"},
    fixed_in="0.19.8",
    present=(Source(f"{_OPTIMIZER}.get_flat_partition", f"buffer = torch.narrow({_COPY}, {_OF_MATRIX}"),),
    fixed=(Source(f"{_OPTIMIZER}.get_flat_partition", f"staged_momentum = {_COPY}"),),
    config=lambda job: job.optimizer == "muon" and job.stage in (1, 2),
)

_RATE, _MOMENTUM, _STEPS = 0.1, 0.95, 2


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    deepspeed = lab.deepspeed
    try:
        from deepspeed.runtime.zero.muon.original_muon import muon_update
    except ImportError:
        raise CannotTell(f"deepspeed {deepspeed.__version__} has no Muon") from None

    if hasattr(torch.compiler, "set_stance"):
        torch.compiler.set_stance("force_eager")  # else the update is compiled on first use
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16, bias=False), torch.nn.Linear(16, 16, bias=False))
    batches = [lab.models.regression_batch(rank=0, step=step, size=32)[0] for step in range(_STEPS)]
    names = [name for name, _ in model.named_parameters()]

    def trained(lost: bool) -> dict[str, Any]:
        weights = [p.detach().clone().requires_grad_() for p in model.parameters()]
        momenta = [torch.zeros_like(weight) for weight in weights]
        for inputs in batches:
            gradients = torch.autograd.grad((inputs @ weights[0].T @ weights[1].T).square().mean(), weights)
            for weight, gradient, momentum in zip(weights, gradients, momenta):
                if lost and weight is weights[0]:
                    momentum.zero_()
                with torch.no_grad():
                    weight -= _RATE * muon_update(gradient.clone(), momentum, _MOMENTUM)
        return dict(zip(names, (weight.detach() for weight in weights)))

    right, wrong = trained(lost=False), trained(lost=True)
    config = {
        "train_micro_batch_size_per_gpu": 32,
        "optimizer": {"type": "Muon", "params": {"lr": _RATE, "momentum": _MOMENTUM, "weight_decay": 0.0}},
        "zero_optimization": {"stage": 2, "reduce_scatter": False},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for inputs in batches:
        engine.backward(engine(inputs.to(lab.device)).square().mean())
        engine.step()
    # the update is computed with 8 or 11 bits of precision, and enlarges the smallest differences
    return lab.reference.compare(
        lab.parameters(engine),
        right,
        {"those of a first matrix without momentum": wrong},
        within=2e-2,
        after=f"after {_STEPS} steps",
    )
