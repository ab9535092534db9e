"""ZeRO-3 + optimizer offload: each gradient waits for the whole accelerator and is copied on the CPU once more.

Why: 0.15.4 casts gradients on the accelerator, but copies each into a pinned buffer of the CPU, waits for everything
    that the accelerator does, and copies the buffer into the fp32 gradients. Upstream measured 1174 ms of backward
    pass where 309 ms suffice.
How: as in 0.16.3, one copy from the accelerator into the fp32 gradients, which waits for its own stream only. The
    numbers are the same. The buffer, of one gradient's size, is still allocated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_PARTITION = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3.partition_grads"
_DETOUR = """
self.pinned_grad_buffer[:buffer_numel].copy_(grad_buffer.to(dtype=torch.float32, non_blocking=True))
get_accelerator().synchronize()
fp32_grad_tensor.copy_(self.pinned_grad_buffer[:buffer_numel], non_blocking=True)
"""

PATCH = Patch(
    title="ZeRO-3 + optimizer offload: gradients are copied on the CPU once more, backward about 4 times slower",
    severity=Severity.USABILITY,
    affects={"deepspeed": ">=0.15.4,<0.16.3"},
    changes=(Edit(_PARTITION, replace=_DETOUR, code="fp32_grad_tensor.copy_(grad_buffer.float())"),),
    symptom="",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/6670": "introduced in 0.15.4",
        "https://github.com/deepspeedai/DeepSpeed/pull/6962": "fixed in 0.16.3",
    },
    fixed_in="0.16.3",
    fixed=(Source(_PARTITION, "fp32_grad_tensor.copy_(grad_buffer.float())"),),
    config=lambda job: job.stage == 3 and job.offloads_optimizer,
)


def reproduce(lab: Lab) -> str:
    from dsfix.lab import gradient_offload

    copies, result = gradient_offload.train(lab)
    again = [each for each in copies if each.from_host]
    if again:
        raise BugPresent(f"{len(again)} gradients are copied from the CPU to the CPU, the first: {again[0]}")
    return result
