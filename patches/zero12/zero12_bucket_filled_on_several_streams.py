"""ZeRO-1/2: a bucket filled by several streams is reduced before all of them have written to it.

Why: with recent PyTorch (seen with 2.13) and DeepSpeed 0.16.6 and newer, a gradient is copied into the bucket on the
    stream that its layer was computed on (`torch.compile`, models with their own streams). Before a full bucket is
    averaged, only the then current stream is waited for: what the others have not yet written is whatever the buffer
    held before, often another bucket's averaged gradients. 0.19.3 waits for all streams, but only with `overlap_comm`;
    0.19.8 also with optimizer offload.
How: before it copies, a gradient's stream waits for the previous gradient's stream if that is a different one. Backward
    passes on one stream have no additional waits.
Changes: the steps in which a bucket was reduced too early; all others give the same numbers. A checkpoint written
    without the patch loads, but its weights were trained on such gradients.
Workaround: None in the script; running all layers on one stream helps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import CannotTell, Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OPTIMIZER = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"


def wait_for_previous_gradient(optimizer: Any, accelerator: Any) -> None:
    """Order the current stream after the one that the previous gradient was copied on."""
    current = accelerator.current_stream()
    previous = optimizer.__dict__.get("_dsfix_gradient_stream", current)
    optimizer._dsfix_gradient_stream = current
    if current != previous and not accelerator.resolves_data_dependency():
        if _fills(optimizer):
            took_effect(__name__, "a gradient waited for the stream of the previous one in the bucket")
        current.wait_stream(previous)


def _fills(optimizer: Any) -> bool:
    """Whether gradients that have not been reduced are in a bucket."""
    if not hasattr(optimizer, "ipg_buckets"):
        return bool(getattr(optimizer, "elements_in_ipg_bucket", 0))  # through 0.17.5
    return any(bucket.elements for bucket in optimizer.ipg_buckets.values())


PATCH = Patch(
    title="ZeRO-1/2 + a model computed on several streams (torch.compile): wrong gradients or nan",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.16.6"},
    changes=(
        Edit(
            f"{_OPTIMIZER}.reduce_independent_p_g_buckets_and_remove_grads",
            before="grad_reduc = self.get_gradient_for_reduction(param)",
            code="wait_for_previous_gradient(self, get_accelerator())",
            uses=(wait_for_previous_gradient,),
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/8061": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/8080": "fixed with overlap_comm in 0.19.3",
    },
    # before, the hook kept each gradient's node, and with it the default stream
    present=(Source(f"{_OPTIMIZER}.create_gradient_handling_hooks", "register_grad_hook(param, grad_handling_hook)"),),
    ranks=2,
)


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    if not lab.emulated:
        raise CannotTell("whether it is reduced too early depends on timing, which only the emulated device controls")
    lab.late_streams("ahead")  # the default stream is late
    from ._overlap import MATRIX, WIDTH, one_step

    # Each gradient fills the bucket. Only layer 1 is computed on the default stream, which rank 1, whose partition has
    # the other half of the layers, does not wait for.
    options = {"stage": 2, "overlap_comm": False, "reduce_bucket_size": WIDTH * WIDTH}
    step = one_step(lab, [MATRIX] * 4, WIDTH * WIDTH, side=(0, 2, 3), zero_optimization=options)
    early = {(1, 1): 2}
    return step.compare(1, {"those of the previous bucket's averaged gradient": early}, averaged=True)
