"""Muon with ZeRO-3 and `zero.Init`: every parameter is trained by Adam.

Why: `deepspeed.initialize` marks the parameters with two or more dimensions for Muon. A parameter that `zero.Init` has
    partitioned has one, whatever the layer's shape is: none is marked, and nothing says so.
How: the dimensions of the layer count, which `zero.Init` keeps, as since 0.19.7. Other parameters are marked as before.
Changes: jobs with Muon and `zero.Init`, also that of transformers: the matrices are in a group of their own and are
    trained by Muon. Optimizer states of a checkpoint written without the patch do not fit ("loaded state dict has a
    different number of parameter groups"): load the weights only, or go on with Adam under DSFIX_SKIP=muon_zero3_init.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_MARK = "deepspeed:set_optimizer_flags"


def dimensions(parameter: Any) -> int:
    """Of the layer's parameter, also where `zero.Init` has partitioned it."""
    return len(getattr(parameter, "ds_shape", parameter.shape))


PATCH = Patch(
    title="Muon with ZeRO-3 and zero.Init: every parameter is trained by Adam",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.18.9,<0.19.7"},
    changes=(
        Edit(
            _MARK,
            after="""
                if p.ndim >= 2 and not any(keyword in name.lower() for keyword in ("embed", "lm_head")):
                    ...
                else:
                    ...
            """,
            code="""
                if p.ndim < 2 <= dimensions(p) and not any(word in name.lower() for word in ("embed", "lm_head")):
                    p.use_muon = True
            """,
            uses=(dimensions,),
        ),
    ),
    symptom="",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/8438": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/7919": "introduced in 0.18.9, with Muon for ZeRO-3",
    },
    fixed_in="0.19.7",
    fixed=(Source(_MARK, "len(_layer_shape(p)) >= 2"),),
    config=lambda job: job.optimizer == "muon" and job.stage == 3,
)

_RATE, _MOMENTUM = 0.1, 0.95


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    deepspeed = lab.deepspeed
    try:
        from deepspeed.runtime.zero.muon.original_muon import (  # type: ignore[import-not-found,unused-ignore]
            adam_update,
            muon_update,
        )
    except ImportError:
        raise CannotTell(f"deepspeed {deepspeed.__version__} has no Muon") from None

    if hasattr(torch.compiler, "set_stance"):
        torch.compiler.set_stance("force_eager")  # else the update is compiled on first use
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "Muon", "params": {"lr": _RATE, "momentum": _MOMENTUM, "weight_decay": 0.0}},
        "zero_optimization": {"stage": 3, "reduce_scatter": False},
    }
    torch.manual_seed(0)
    with deepspeed.zero.Init(config_dict_or_path=config):
        model = torch.nn.Linear(16, 16, bias=False)
    with deepspeed.zero.GatheredParameters(model.parameters()):
        before = model.weight.detach().clone().cpu()
    inputs, targets = (lab.models.regression_batch(rank=0, step=step)[0] for step in range(2))
    weight = before.clone().requires_grad_()
    [gradient] = torch.autograd.grad(torch.nn.functional.mse_loss(inputs @ weight.T, targets), [weight])
    nothing = torch.zeros_like(before)
    muon = muon_update(gradient.clone(), nothing.clone(), _MOMENTUM)
    adam = adam_update(gradient.clone(), nothing.clone(), nothing.clone(), 1, (0.9, 0.95), 1e-10)
    right, wrong = ({"weight": before - _RATE * update} for update in (muon, adam))

    try:
        engine = lab.initialize(model, config, model_parameters=model.parameters())
    except AssertionError as error:
        if "Muon" in str(error):
            raise CannotTell(f"deepspeed {deepspeed.__version__}: {error}") from error
        raise
    engine.backward(torch.nn.functional.mse_loss(engine(inputs.to(lab.device)), targets.to(lab.device)))
    engine.step()
    # the update is computed with 8 or 11 bits of precision
    return lab.reference.compare(
        lab.parameters(engine), right, {"those of Adam": wrong}, within=5e-3, after="after 1 step"
    )
