"""PipelineModule with activation_checkpoint_interval, called without its engine: no layer runs, the input is returned.

Why: since 0.14.5 a list tells the module's forward pass which segments of layers to checkpoint, and it runs as many
    segments as the list has entries. Only PipelineEngine fills it, when it is created. A module that is called before
    or without `deepspeed.initialize` (to evaluate or compare) returns its input as the result. If the interval is
    changed later, the list is still the old one's: layers at the end are left out.
How: the forward pass decides by itself if the list is not that of the current interval, and leaves the list to the
    engine, whose config can still change the interval and the function.
Changes: only calls as above; what a job trains and its checkpoints stay the same.
Workaround: Scripts call the module's `_precompute_checkpointable_values()` first, set its interval to 0 meanwhile, or
    call the functions in `forward_funcs` one by one. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_MODULE = "deepspeed.runtime.pipe.module:PipelineModule"


def segments_to_checkpoint(module: Any) -> list[bool]:
    """For each segment of layers whether it is checkpointed, with the module's current interval."""
    layers, interval = module.forward_funcs, module.activation_checkpoint_interval
    starts = range(0, len(layers), interval)
    known: list[bool] = module.is_checkpointable_results
    if module.is_checkpointable_results_interval == interval and len(known) == len(starts):
        return known
    if len(known) < len(starts):
        took_effect(__name__, "all layers ran (unpatched: %s of %s segments)", len(known), len(starts))
    return [module._is_checkpointable(layers[start : start + interval]) for start in starts]


PATCH = Patch(
    title="PipelineModule with activation_checkpoint_interval, called without its engine: no layer runs",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.14.5"},
    changes=(
        Edit(
            f"{_MODULE}.forward",
            after="num_layers = len(self.forward_funcs)",
            code="are_checkpointed = segments_to_checkpoint(self)",
            uses=(segments_to_checkpoint,),
        ),
        Edit(f"{_MODULE}.forward", replace="self.is_checkpointable_results", code="are_checkpointed"),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/5759": "introduced in 0.14.5"},
    present=(
        Source(
            f"{_MODULE}.forward",
            "zip(range(0, num_layers, self.activation_checkpoint_interval), self.is_checkpointable_results)",
        ),
    ),
)

_LAYERS = 4


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    from . import _pipeline as pipeline

    layers = [pipeline.block(seed) for seed in range(_LAYERS)]
    module = lab.deepspeed.pipe.PipelineModule(
        layers=layers, num_stages=1, partition_method="uniform", activation_checkpoint_interval=2
    )
    parameters = dict(module.named_parameters())
    inputs = torch.randn(4, 16, generator=torch.Generator().manual_seed(0)).to(lab.device).requires_grad_()

    def run(model: Any) -> dict[str, Any]:
        """The output, and the gradients: checkpointed layers have them only in `.grad`."""
        output = model(inputs)
        output = output[0] if isinstance(output, tuple) else output
        module.zero_grad()
        if output.grad_fn is not None:
            output.square().sum().backward()
        return {"the output": output.detach(), **{name: p.grad for name, p in parameters.items()}}

    reports = []
    for interval in (2, 1):
        module.activation_checkpoint_interval = interval
        right = {name: each.clone() for name, each in run(torch.nn.Sequential(*layers)).items()}
        seen = run(module)
        if torch.equal(seen["the output"], inputs):
            raise BugPresent(f"a module of {_LAYERS} layers returns its input")
        reports.append(lab.reference.compare(seen, right, what=f"output and gradients with an interval of {interval}"))
    return "; ".join(reports)
