"""ZeRO-3 + optimizer offload in fp16 or bf16: gradients are cast to fp32 on the CPU, and the backward pass is slow.

Why: through 0.15.3 the last backward pass of a step copies each gradient, in half precision on the accelerator, into
    the fp32 gradients on the CPU with one `copy_`. Between devices torch casts on the CPU, in one more pass over a
    temporary tensor there; upstream measured 25.6 s of backward pass where 0.31 s suffice.
How: a gradient is cast on the accelerator and then copied, as in 0.16.3, but in pieces of eight million numbers: the
    same numbers, with room for 32 MB on the accelerator. Where both tensors are on one device (subgroups that `ratio`
    below 1 leaves on the accelerator), and where gradients are in fp32, nothing changes.
Workaround: None in the script; DeepSpeed 0.15.4 helps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source
from dsfix.process.effects import ran

if TYPE_CHECKING:
    from dsfix.job import Job
    from dsfix.lab import Lab

_PARTITION = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3.partition_grads"

_PIECE = 1 << 23


def cast_before_copy(target: Any, source: Any) -> None:
    """target.copy_(source), flat tensors of one length: cast where the source is, without room for all of it there."""
    if source.device == target.device or source.dtype == target.dtype:
        target.copy_(source)
        return
    ran(__name__)
    for start in range(0, source.numel(), _PIECE):
        size = min(_PIECE, source.numel() - start)
        target.narrow(0, start, size).copy_(source.narrow(0, start, size).to(target.dtype))


def _meets(job: Job) -> bool:
    return job.stage == 3 and job.offloads_optimizer and job.half and not job.fp32_gradients


PATCH = Patch(
    title="ZeRO-3 + optimizer offload in half precision: gradients are cast on the CPU, backward up to 80 times slower",
    severity=Severity.USABILITY,
    affects={"deepspeed": ">=0.12.0,<0.15.4"},
    changes=(
        Edit(
            _PARTITION,
            replace="fp32_grad_tensor.copy_(grad_buffer)",
            code="cast_before_copy(fp32_grad_tensor, grad_buffer)",
            uses=(cast_before_copy,),
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/6670": "fixed in 0.15.4: by a way round",
        "https://github.com/deepspeedai/DeepSpeed/pull/6962": "fixed in 0.16.3",
    },
    fixed_in="0.15.4",
    fixed=(
        Source(_PARTITION, "fp32_grad_tensor.copy_(grad_buffer.float())"),
        Source(_PARTITION, "grad_buffer.to(dtype=torch.float32, non_blocking=True)"),  # in 0.15.4
    ),
    config=_meets,
)


def reproduce(lab: Lab) -> str:
    from . import _gradient_offload as gradient_offload

    copies, result = gradient_offload.train(lab)
    mixed = [each for each in copies if each.casts and each.crosses]
    if mixed:
        raise BugPresent(f"{len(mixed)} copies of gradients to the CPU cast there, the first: {mixed[0]}")
    return result
