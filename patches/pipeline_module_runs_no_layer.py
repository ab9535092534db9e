"""PipelineModule with activation_checkpoint_interval, called without its engine: no layer runs, the input is returned.

Why: since 0.14.5 the module's forward pass takes from a list which segments of layers to checkpoint, and runs as many
    segments as the list has. Only PipelineEngine fills it, when it is created. A module that is called before, or
    without `deepspeed.initialize` (to evaluate, or to compare), returns its input as if it were the result. If the
    interval is changed later, the list is that of the old one: layers at the end are left out.
How: the forward pass fills the list if it is not that of the current interval.
Changes: only calls as above; what a job trains and its checkpoints stay the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_MODULE = "deepspeed.runtime.pipe.module:PipelineModule"


def choose_segments(module: Any) -> None:
    """Decides anew which segments of layers are checkpointed if the interval is another."""
    if module.is_checkpointable_results_interval != module.activation_checkpoint_interval:
        module.is_checkpointable_results = []
        module._precompute_checkpointable_values()


PATCH = Patch(
    title="PipelineModule with activation_checkpoint_interval runs no layer outside of its engine",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.14.5"},
    changes=(
        Edit(
            f"{_MODULE}.forward",
            before="for start_idx, is_checkpointable_result in "
            "zip(range(0, num_layers, self.activation_checkpoint_interval), self.is_checkpointable_results):\n    ...",
            code="choose_segments(self)",
            uses=(choose_segments,),
        ),
    ),
    symptom="",
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/5759": "introduced in 0.14.5"},
    fixed_in=None,
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
    from dsfix.lab import pipeline

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
