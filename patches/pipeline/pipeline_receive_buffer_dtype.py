"""Pipeline with three or more stages that pass tensors of several dtypes: it trains on garbage or hangs.

Why: since 0.15.0 a stage keeps one list of buffers, by position, for the activations that it receives and for the
    gradients. A buffer is reused if it has enough elements, whatever its dtype. A stage in the middle whose input is
    (float32, int64, float32) receives the gradient of the second float tensor, which is the second gradient but the
    third tensor, into the int64 buffer: the sizes in bytes differ, so that the ranks wait for each other, or the bits
    are read as another type. fp32 tensors beside fp16 or bf16 ones do the same.
How: a buffer is reused only for the same dtype; otherwise a new one is allocated.
Changes: only jobs that hang, fail or train on garbage without the patch; their checkpoints are garbage, too.
Workaround: The layers pass the float tensors that have gradients, all of one dtype, before the others, or scripts
    replace or wrap `_allocate_or_extend_buffers` so that it respects the dtype. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ALLOCATE = "deepspeed.runtime.pipe.engine:PipelineEngine._allocate_or_extend_buffers"
_REUSED = "len(self._grad_layer_buf) <= idx or self._grad_layer_buf[idx].numel() < numel"

PATCH = Patch(
    title="Pipeline with three or more stages that exchange tensors of several dtypes: garbage gradients or a hang",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.15.0"},
    changes=(
        Edit(
            _ALLOCATE,
            replace=_REUSED,
            code=f"{_REUSED} or self._grad_layer_buf[idx].dtype != dtype",
            effect="a buffer of the right dtype was allocated (unpatched: one of another dtype is used)",
            when=f"not ({_REUSED}) and self._grad_layer_buf[idx].dtype != dtype",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7055": "related: proposed fix",
        "https://github.com/tdrussell/diffusion-pipe/issues/511": "reported",
    },
    present=(Source(_ALLOCATE, _REUSED),),
    ranks=3,
    device="cpu",
)

_LEARNING_RATE, _WIDTH = 0.1, 16


def reproduce(lab: Lab) -> str:
    lab.require_ranks(3)
    torch = lab.torch
    from . import _pipeline as pipeline

    def step(layer: Any, given: Any) -> Any:
        """(x, indices, y) -> (x, indices, y), where both float tensors have gradients."""
        x, indices, y = given
        return layer.body(x) + y.gather(1, indices), indices, layer.other(y)

    def last(layer: Any, given: Any) -> Any:
        x, indices, y = given
        return layer.head(x + y.gather(1, indices))

    def layers() -> list[Any]:
        parts = [{"body": pipeline.block(seed), "other": pipeline.block(seed + 10)} for seed in range(2)]
        return [*(pipeline.Passing(step, **each) for each in parts), pipeline.Passing(last, head=pipeline.head())]

    indices = torch.arange(_WIDTH).flip(0).repeat(4, 1)
    batches = []
    for number in range(pipeline.STEPS * pipeline.MICRO_BATCHES):
        x, targets = lab.models.regression_batch(rank=0, step=number)
        y, _ = lab.models.regression_batch(rank=1, step=number)
        batches.append(((x, indices, y), targets))
    right = pipeline.expected_layers(layers(), batches, [_LEARNING_RATE])
    engine = pipeline.train_layers(lab, layers(), batches, {}, _LEARNING_RATE)
    received = [str(buffer.dtype) for buffer in engine.grad_layer or ()]
    if "torch.int64" in received:
        raise BugPresent(
            f"stage {lab.rank} received gradients of float32 tensors into {' and '.join(received)} buffers"
        )
    seen = lab.parameters(engine)
    return lab.reference.compare(
        seen, pipeline.of_stage(right, seen), after=f"after {pipeline.STEPS} steps", what="the parameters of all stages"
    )
