"""ZeRO++ hpZ: the second copy of a parameter is gathered before it is written: garbage in the backward pass.

Why: with `zero_hpz_partition_size` a layer's second copy is written after its forward pass, on the stream of the
    computation. The backward pass gathers it on a stream of its own, which does not wait for that one: the last layers
    of a model, gathered at once, may be what the memory held before. Losses are too high or nan, from run to run
    different ones.
How: the gathering waits for the event that follows the copy, on its stream; the host does not wait, as it does in
    0.13.5. Through 0.13.1 the second copy is also as old as the model, which `check` reports, not this patch.
Changes: the steps in which a copy was gathered too early; all others give the same numbers. A checkpoint written without
    the patch loads, but its weights were trained on such gradients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.job import Job
    from dsfix.lab import Lab

_INIT = "deepspeed.runtime.zero.partition_parameters:Init"
_SECOND = f"{_INIT}._partition_param_sec"
_GATHER = f"{_INIT}._convert_to_deepspeed_param.<locals>.all_gather_coalesced"


def written(parameter: Any) -> None:
    """Remember when the second copy has been written."""
    from deepspeed.accelerator import get_accelerator  # type: ignore[import-not-found,unused-ignore]

    if not get_accelerator().is_synchronized_device():
        parameter.ds_secondary_tensor.dsfix_written = get_accelerator().Event()
        parameter.ds_secondary_tensor.dsfix_written.record()


def wait_until_written(parameters: Any) -> None:
    """Let the current stream wait for the second copies of these parameters."""
    for parameter in parameters:
        event = getattr(parameter.ds_secondary_tensor, "dsfix_written", None)
        if event is not None:
            event.wait()


def _meets(job: Job) -> bool:
    size = job.get("zero_optimization", "zero_hpz_partition_size", default=1)
    return job.stage == 3 and isinstance(size, int) and size > 1


PATCH = Patch(
    title="ZeRO++ hpZ: garbage weights in the backward pass: losses too high or nan, different in each run",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.13.2,<0.13.5"},
    changes=(
        Edit(
            _SECOND,
            before='print_rank_0(f"{param.ds_id} partitioned type {param.dtype} dev {param.device} shape {param.shape}",'
            " force=False)",
            code="written(param)",
            uses=(written,),
        ),
        Edit(
            _GATHER,
            before="ds_process_group = self.ds_process_group",
            code="wait_until_written(params)",
            uses=(wait_until_written,),
        ),
    ),
    symptom="",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/5059": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/5216": "fixed in 0.13.5",
    },
    fixed_in="0.13.5",
    # before 0.13.2 the copy is never made again
    present=(Source(_SECOND, "if param.ds_secondary_tensor is None:\n    ..."),),
    fixed=(Source(_SECOND, "get_accelerator().current_stream().synchronize()"),),
    ranks=2,
    config=_meets,
)


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    if not lab.emulated:
        raise CannotTell("whether it is gathered too early depends on timing, which only the emulated device controls")
    lab.late_streams("ahead")  # the default stream is late
    from dsfix.lab.second_copies import BEFORE, train

    # the first step has copies that were written when the engine was made
    released = {"stage3_max_reuse_distance": 0, "stage3_prefetch_bucket_size": 0}  # the last layer, after its forward pass
    training = train(lab, width=16, partition_size=2, steps=2, overlap_comm=True, **released)
    return training.compare(training.right * 0 + BEFORE)
