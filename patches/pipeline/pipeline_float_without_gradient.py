"""Pipeline: the backward pass fails if a stage passes on a float tensor that needs no gradient, such as a mask.

Why: a stage assumes that every floating-point tensor of its output has a gradient. For an attention mask, rotary
    cosines or a loss weight that the model only passes on, the first stage fails with "element 1 of tensors does not
    require grad and does not have a grad_fn", or, if the tensor does require one, a stage that received it and did not
    use it fails with an AssertionError when it sends gradients back.
How: each stage sends back zeros for a float input that got no gradient, so that both sides still exchange the same
    tensors, and leaves outputs that require none out of its backward pass. If no float input got a gradient, or no
    output requires one, it fails as before: gradients cannot cross that boundary.
Workaround: Scripts pass a mask as bool or as integers, or the first stage makes it require a gradient and the last adds
    it to its result, multiplied by 0. You can keep it.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ENGINE = "deepspeed.runtime.pipe.engine:PipelineEngine"
_SENT = "assert buffer.grad is not None\np2p.send(buffer.grad, self.prev_stage)"
_PAIRED = "assert len(out_tensors) == len(grad_tensors)"


def gradient(buffer: Any, inputs: Sequence[Any]) -> Any:
    """The gradient of a received float tensor; zeros if only others got one."""
    if buffer.grad is None and any(each.grad is not None for each in inputs):
        took_effect(__name__, "zeros were sent back for an input without a gradient (unpatched: AssertionError)")
        return buffer.new_zeros(buffer.shape)
    assert buffer.grad is not None
    return buffer.grad


def requiring(outputs: Sequence[Any], gradients: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    """The outputs that require a gradient, and theirs; all of them if none does."""
    kept = [pair for pair in zip(outputs, gradients) if pair[0].requires_grad]
    if len(kept) in (0, len(outputs)):
        return outputs, gradients
    took_effect(__name__, "outputs without a gradient were left out of the backward pass (unpatched: RuntimeError)")
    return [output for output, _ in kept], [received for _, received in kept]


PATCH = Patch(
    title="Pipeline: the backward pass fails if a stage passes on a float tensor that needs no gradient (a mask)",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.12.0"},
    changes=(
        Edit(
            f"{_ENGINE}._exec_send_grads",
            replace=_SENT,
            code="p2p.send(gradient(buffer, inputs), self.prev_stage)",
            uses=(gradient,),
        ),
        Edit(
            f"{_ENGINE}._exec_backward_pass",
            after=_PAIRED,
            code="out_tensors, grad_tensors = requiring(out_tensors, grad_tensors)",
            uses=(requiring,),
        ),
    ),
    symptom=r"in _exec_backward_pass\n(.*\n){1,40}?RuntimeError: element \d+ of tensors does not require grad"
    r"|in _exec_send_grads\n\s+assert buffer\.grad is not None",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/7357": "reported",
        "https://github.com/deepspeedai/DeepSpeed/issues/3895": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/5518": "open",
    },
    present=(
        Source(f"{_ENGINE}._exec_send_grads", _SENT),
        Source(f"{_ENGINE}._exec_backward_pass", _PAIRED),
    ),
    ranks=3,
)

_LEARNING_RATE = 0.1


def reproduce(lab: Lab) -> str:
    lab.require_ranks(3)
    _ = lab.torch
    from . import _pipeline as pipeline

    step = lambda layer, given: (given[0] + layer.body(given[0]) * given[1], given[1])  # noqa: E731
    with_mask = lambda layer, given: layer.head(given[0] * given[1])  # noqa: E731
    without = lambda layer, given: layer.head(given[0])  # noqa: E731

    batches = []
    for number in range(pipeline.STEPS * pipeline.MICRO_BATCHES):
        x, targets = lab.models.regression_batch(rank=0, step=number)
        batches.append(((x, (x > 0).float()), targets))

    def trained(masked: bool) -> str:
        """masked: whether the last stage uses the mask, which then gets a gradient there."""

        def layers() -> list[Any]:
            stages = [pipeline.Passing(step, body=pipeline.block(seed)) for seed in range(2)]
            return [*stages, pipeline.Passing(with_mask if masked else without, head=pipeline.head())]

        right = pipeline.expected_layers(layers(), batches, [_LEARNING_RATE])
        try:
            seen = lab.parameters(pipeline.train_layers(lab, layers(), batches, {}, _LEARNING_RATE))
        except (RuntimeError, AssertionError) as error:
            where = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
            if "_exec_backward_pass" in where and "of tensors does not require grad" in str(error):
                raise BugPresent(f"stage {lab.rank}: {str(error).splitlines()[0]}") from error
            if where[-1] == "_exec_send_grads":
                raise BugPresent(f"stage {lab.rank}: a float input has no gradient to send back") from error
            raise
        return lab.reference.compare(
            seen,
            pipeline.of_stage(right, seen),
            after=f"mask {'used' if masked else 'ignored'} by the last stage: after {pipeline.STEPS} steps",
            what="the parameters of all stages",
        )

    return "; ".join(trained(masked) for masked in (True, False))
