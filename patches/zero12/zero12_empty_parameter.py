"""ZeRO-1/2 with an empty trainable parameter: AssertionError at the start, or KeyError in the backward pass.

Why: an empty parameter ends where it begins. Inside a partition it counts as a part of it with length 0, which is
    rejected: "fragment start … should be < fragment_end …". At the end of a parameter group it is in no partition, so
    its gradient has no destination: KeyError in `average_tensor`. If it is the first of a partition, or these two are
    fixed, fp16 and any optimizer offload compute its largest element when they check for overflow (0.13.3 and later).
    Empty parameters come from layers of width 0 and from placeholders; plain PyTorch accepts them.
How: no fragment is made for an empty parameter, and one that is in no partition is not reduced; the overflow check
    skips it. The first of a partition now counts in the numbering of its gradients: `safe_get_full_grad` of the others
    returned the neighbour's. Those in a partition are still reduced, because `ignore_unused_parameters: false` needs
    every gradient.
Workaround: Scripts freeze parameters without elements, or leave them out. You can keep it.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OPTIMIZER = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"
_LINK = "deepspeed.utils.mixed_precision_linkage:_init_lp_to_hp_mapping"
_OVERLAP = "partition_start <= current_offset < partition_end or current_offset < partition_start < lp_param_end"
_APPEND = "param_and_offset_list.append((lp_param, current_offset))"

PATCH = Patch(
    title="ZeRO-1/2: AssertionError or KeyError for an empty trainable parameter",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.12.0,<0.19.6"},
    changes=(
        Edit(
            f"{_OPTIMIZER}.reduce_independent_p_g_buckets_and_remove_grads",
            before="grad_reduc = self.get_gradient_for_reduction(param)",
            code="if not param.numel() and self.get_param_id(param) not in self.param_to_partition_ids[i]:\n    return",
            effect="an empty parameter was not reduced (unpatched: KeyError)",
            when="not param.numel() and self.contiguous_gradients and self.reduce_scatter"
            " and self.get_param_id(param) not in self.param_to_partition_ids[i]",
        ),
        Edit(_LINK, replace="current_offset < partition_end and lp_param_end > partition_start", code=_OVERLAP),
        Edit(
            _LINK,
            replace=_APPEND,
            code=f"if lp_param.numel() > 0:\n    {_APPEND}",
            effect="an empty parameter was left out (unpatched: AssertionError)",
            when="not lp_param.numel() and current_offset > partition_start",
        ),
        Edit(f"{_OPTIMIZER}._has_inf_or_nan", replace="x.float()", code="(x if x.numel() else x.new_zeros(1)).float()"),
    ),
    symptom=(
        r"fragment start (\d+) should be < fragment_end \1\b|in average_tensor[\s\S]*KeyError: \d+"
        r"|in _has_inf_or_nan[\s\S]*max\(\): Expected reduction dim"
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/8279": "reported",
        "https://github.com/deepspeedai/DeepSpeed/issues/8297": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/8280": "fixed in 0.19.6",
        "https://github.com/deepspeedai/DeepSpeed/pull/8298": "fixed in 0.19.6",
    },
    fixed_in="0.19.6",
    fixed=(Source(_LINK, "if lp_param.numel() > 0:\n    ..."),),
)

_LEARNING_RATE = 0.1
_STEPS = 2
_PLACES = {"first": 0, "inside": 1, "at the end": 2}
_OFFLOAD = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
_CONFIGS: dict[str, dict[str, Any]] = {
    "fp32": {"zero_optimization": {"stage": 2}},
    "fp16": {"zero_optimization": {"stage": 2}, "fp16": {"enabled": True, "loss_scale": 1}},
    "offload": {"zero_optimization": _OFFLOAD},
}
# the function in which each error is raised
_ERRORS = {AssertionError: "get_hp_fragment_mapping", KeyError: "average_tensor", RuntimeError: "_has_inf_or_nan"}


def reproduce(lab: Lab) -> str:
    cases = [(name, place) for name in _CONFIGS for place in _PLACES]
    seen = {(name, place): _train(lab, _CONFIGS[name], _PLACES[place]) for name, place in cases}
    errors = [f"{', '.join(case)}: {error}" for case, error in seen.items() if isinstance(error, str)]
    if errors:
        raise BugPresent("an empty parameter " + "; ".join(errors))
    relative = max(difference for difference in seen.values() if isinstance(difference, float))
    return (
        f"with an empty parameter {', '.join(_PLACES)} the parameters match plain PyTorch within {relative:.1e}"
        f" ({', '.join(_CONFIGS)})"
    )


def _train(lab: Lab, config: dict[str, Any], index: int) -> float | str:
    """The largest relative difference from plain PyTorch with the empty parameter at `index`, or the bug's error."""
    torch = lab.torch
    batches = [torch.arange(8.0) / 8 * (step + 1) for step in range(_STEPS)]
    model = _model(torch, index)
    expected = lab.reference.train(model, [[(each,)] for each in batches], model, "SGD", lr=_LEARNING_RATE)
    model = _model(torch, index)
    config = {"optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}}, **config}
    try:
        engine = lab.initialize(model, config, model_parameters=model.parameters())
        for each in batches:
            engine.backward(engine(each.to(lab.device, next(model.parameters()).dtype)).float())
            engine.step()
    except tuple(_ERRORS) as error:
        place = traceback.extract_tb(error.__traceback__)[-1].name
        if _ERRORS.get(type(error)) == place:
            return f"{type(error).__name__} in {place}, {error}"
        raise
    difference = lab.reference.largest_difference(lab.parameters(engine), expected.parameters)
    assert difference.relative < (1e-2 if "fp16" in config else 1e-4), f"after {_STEPS} steps {difference}"
    return difference.relative


def _model(torch: Any, index: int) -> Any:
    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            tensors = [torch.ones(8), torch.ones(24)]
            tensors.insert(index, torch.ones(0))
            self.weights = torch.nn.ParameterList(tensors)

        def forward(self, x: Any) -> Any:
            first, *others = (weight for weight in self.weights if weight.numel())
            empty = self.weights[index].square().sum()
            return (first * x).square().sum() + sum(weight.square().sum() for weight in others) + empty

    return Model()
