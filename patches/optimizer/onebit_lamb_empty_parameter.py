"""1-bit LAMB with an empty parameter: nan, then RuntimeError, in the first compressed step.

Why: after `freeze_step` steps OnebitLamb computes a scale for each parameter's momentum: its norm divided by the square
    root of the number of elements. For an empty parameter that is 0/0: the mean of all scales is nan, and so is each
    weight that is updated before the empty one, whose largest element stops the job: "max(): Expected reduction dim".
    Empty parameters come from layers of width 0 and from placeholders; plain PyTorch accepts them.
How: an empty parameter is not part of the mean, and has the scale and the factor 1. Since 0.18.4 it is left out of the
    optimizer's groups; here it stays, as in the checkpoints that were written until then.
Workaround: Scripts pass DeepSpeed only the parameters that have elements. You can keep it.
"""

from __future__ import annotations

import sys
import traceback
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, BugPresent, CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OPTIMIZER = "deepspeed.runtime.fp16.onebit.lamb:OnebitLamb"
_STEP = f"{_OPTIMIZER}.step"
_SCALE = "united_scale / momentum_scales[i][j]"
_FACTOR = "(denom / denom_real).max().item()"

PATCH = Patch(
    title="1-bit LAMB with an empty parameter: nan, then RuntimeError, when compression starts",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.12.0,<0.18.4"},
    changes=(
        Edit(
            _STEP,
            replace="np.sqrt(torch.numel(self.state[p]['exp_avg']))",
            code="np.sqrt(torch.numel(self.state[p]['exp_avg']) or 1)",
            effect=RAN,
        ),
        Edit(
            _STEP,
            replace="sum([len(x) for x in momentum_scales])",
            code="max(1, sum([torch.numel(p) > 0 for group in self.param_groups for p in group['params']]))",
        ),
        Edit(_STEP, replace=_SCALE, code=f"{_SCALE} if torch.numel(p) else 1.0"),
        Edit(_STEP, replace=_FACTOR, code=f"{_FACTOR} if denom.numel() else 1.0"),
    ),
    symptom=r"onebit/lamb\.py[\s\S]*max\(\): Expected reduction dim",
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/7736": "fixed in 0.18.4"},
    fixed_in="0.18.4",
    fixed=(Source(f"{_OPTIMIZER}.__init__", "filtered_params = filter_empty_parameters(params)"),),
)

_OPTIONS = {"lr": 1e-4, "freeze_step": 3, "weight_decay": 0.01}
_STEPS = 5
_SHAPES = (0,), (0, 8), (8, 0)


def reproduce(lab: Lab) -> str:
    expected = _trained(lab, None, False)
    unflattened = lab.torch._utils._unflatten_dense_tensors
    for shape in _SHAPES:
        # older releases of torch make (0,) of it, and the engine's all-reduce fails before the optimizer is reached
        if unflattened(lab.torch.zeros(0), [lab.torch.zeros(shape)])[0].shape != shape:
            continue
        for first in (True, False):
            try:
                trained = _trained(lab, shape, first)
            except RuntimeError as error:
                place = traceback.extract_tb(error.__traceback__)[-1]
                if (place.name, str(error)[:31]) == ("step", "max(): Expected reduction dim t"):
                    raise BugPresent(f"with a parameter of shape {shape}: {error}") from error
                raise
            difference = lab.reference.largest_difference(trained, expected)
            assert difference.absolute == 0.0, f"with a parameter of shape {shape} {difference}"
    return (
        f"after {_STEPS} steps, {_STEPS - _OPTIONS['freeze_step']:g} of them compressed, the others are as without it"
    )


def _trained(lab: Lab, shape: tuple[int, ...] | None, first: bool) -> dict[str, Any]:
    """An MLP's parameters after training with an empty one of this shape before or behind them."""
    torch = lab.torch
    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(_STEPS)]
    model = torch.nn.ModuleDict({"mlp": lab.models.MLP()})
    if shape is not None:
        model.register_parameter("empty", torch.nn.Parameter(torch.ones(shape)))
    layers = [*model["mlp"].parameters()]
    parameters = [model.empty, *layers] if first else [*layers, *([] if shape is None else [model.empty])]

    def forward(inputs: Any) -> Any:
        outputs = model["mlp"](inputs)
        return outputs if shape is None else outputs + model.empty.sum()

    model.forward = forward
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "OneBitLamb", "params": _OPTIONS},
    }
    # on one rank nothing is exchanged, and nothing of CuPy is used but its name
    sys.modules.setdefault("cupy", ModuleType("cupy"))
    try:
        engine = lab.initialize(model, config, model_parameters=parameters)
    except AssertionError as error:
        if "OneBitLamb is not a supported" in str(error):
            raise CannotTell(f"deepspeed {lab.deepspeed.__version__} has no OneBitLamb") from error
        raise
    for inputs, targets in batches:
        engine.backward(torch.nn.functional.mse_loss(engine(inputs.to(lab.device)), targets.to(lab.device)))
        engine.step()
    return {name: each for name, each in lab.parameters(engine).items() if name != "empty"}
