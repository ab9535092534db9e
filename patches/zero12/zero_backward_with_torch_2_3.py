"""ZeRO in 0.18.3 to 0.18.6, torch 2.3 or 2.4.0: the first backward pass fails in count_used_parameters_in_backward.

Why: to know when a backward pass is over, these releases count the parameters that it will reach, in the hook of the
    first gradient. They ask torch for each parameter's node in the graph. torch 2.3 and 2.4.0 make a view of the
    parameter to find it; in a hook, where gradients are disabled, the view has no node: 'NoneType' object has no
    attribute 'next_functions'. torch 2.4.1 enables gradients for this itself; torch 2.1 and 2.2 lack the function.
How: gradients are enabled during this query.
Workaround: None in the script; torch 2.4.1 helps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.job import Job
    from dsfix.lab import Lab

_COUNT = "deepspeed.runtime.utils:count_used_parameters_in_backward"


def node_of(lookup: Callable[[Any], Any], parameter: Any) -> Any:
    """The parameter's node in the graph of the backward pass; None if it has none."""
    import torch

    if not torch.is_grad_enabled() and parameter.requires_grad and parameter.grad_fn is None:
        took_effect(__name__, "parameters were counted with gradients enabled (unpatched: AttributeError)")
    with torch.enable_grad():
        return lookup(parameter)


def _meets(job: Job) -> bool:
    return job.stage in (1, 2, 3)


PATCH = Patch(
    title="ZeRO with torch 2.3 or 2.4.0: the first backward pass fails, no attribute 'next_functions'",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.18.3,<0.18.7", "torch": ">=2.3,<2.4.1"},
    changes=(
        Edit(
            _COUNT,
            replace="grad_fn = _get_grad_fn_or_grad_acc(param)",
            code="grad_fn = node_of(_get_grad_fn_or_grad_acc, param)",
            uses=(node_of,),
        ),
    ),
    symptom=r"count_used_parameters_in_backward[\s\S]*'NoneType' object has no attribute 'next_functions'",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/7830": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/7841": "fixed in 0.18.7",
    },
    fixed_in="0.18.7",
    fixed=(Source(_COUNT, "with torch.enable_grad():\n    grad_fn = _get_grad_fn_or_grad_acc(param)"),),
    config=_meets,
    device="cpu",
)


def reproduce(lab: Lab) -> str:
    try:
        assert lab.deepspeed
    except AttributeError as error:
        if error.name != "custom_fwd":
            raise
        raise CannotTell("`import deepspeed` 0.18.7 to 0.19.7 needs torch 2.4") from error
    results = []
    for stage in (1, 2, 3):
        model = lab.models.MLP()
        batches = [[lab.models.regression_batch(0, step=step)] for step in range(2)]
        right = lab.reference.train(model, batches, model.loss, "SGD", lr=0.1)
        config = {
            "train_micro_batch_size_per_gpu": len(batches[0][0][0]),
            "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
            "zero_optimization": {"stage": stage},
        }
        model = lab.models.MLP()
        engine = lab.initialize(model, config, model_parameters=model.parameters())
        for [batch] in batches:
            inputs, targets = (each.to(lab.device) for each in batch)
            loss = lab.torch.nn.functional.mse_loss(engine(inputs), targets)
            try:
                engine.backward(loss)
            except AttributeError as error:
                if error.name != "next_functions":
                    raise
                raise BugPresent(f"ZeRO-{stage}: {error}") from error
            engine.step()
        results.append(
            f"ZeRO-{stage}: {lab.reference.compare(lab.parameters(engine), right.parameters, after='after 2 steps')}"
        )
    return "; ".join(results)
