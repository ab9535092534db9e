"""ZeRO++ hpZ: a parameter's second copy is gathered before it is written: the backward pass uses garbage.

Why: with `zero_hpz_partition_size` each parameter's second copy is written on the default stream when the parameter is
    released. The backward pass gathers it on another stream, which does not wait for the write. If the default stream
    lags, as it does when the forward pass has just been queued, the gathering reads whatever the memory held before:
    gradients are garbage or nan, different in each run. The last layers of the forward pass are most at risk. Through
    0.13.2 `engine.backward` reads the loss first, which waits for the default stream.
How: an event is recorded after the write, and the gathering waits for it on its stream. Upstream makes the host wait
    after each write instead.
Changes: the steps in which a second copy was read too early; all others give the same numbers. A checkpoint written
    without the patch loads, but its weights were trained on such gradients.
Workaround: Scripts call `torch.cuda.synchronize()`, or read the loss, before the backward pass. You can keep it, but it
    costs time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import CannotTell, Edit, Patch, Severity, Source
from dsfix.process.effects import ran

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dsfix.lab import Lab

_INIT = "deepspeed.runtime.zero.partition_parameters:Init"
_SECOND = f"{_INIT}._partition_param_sec"
_WRITTEN = (
    'print_rank_0(f"{param.ds_id} partitioned type {param.dtype} dev {param.device} shape {param.shape}", force=False)'
)
_BACKWARD = "deepspeed.runtime.engine:DeepSpeedEngine.backward"


def written(parameter: Any) -> None:
    """Remember when the second copy, which was just written on the current stream, will be there."""
    from deepspeed.accelerator import get_accelerator

    accelerator = get_accelerator()
    if not accelerator.is_synchronized_device():
        event = accelerator.Event()
        event.record(accelerator.current_stream())
        parameter.ds_secondary_tensor.dsfix_written = event


def wait_for_second_copies(parameters: Iterable[Any]) -> None:
    """Order the current stream after the writes of the second copies that it is about to read."""
    from deepspeed.accelerator import get_accelerator

    for parameter in parameters:
        event = getattr(parameter.ds_secondary_tensor, "dsfix_written", None)
        if event is not None:
            ran(__name__)
            get_accelerator().current_stream().wait_event(event)


PATCH = Patch(
    title="ZeRO++ hpZ: garbage in the backward pass, different in each run: second copies are gathered too early",
    severity=Severity.WRONG_RESULT,
    # the missing wait is older, and hidden by the reading of the loss in `engine.backward`
    affects={"deepspeed": ">=0.13.3,<0.13.5"},
    changes=(
        Edit(
            _SECOND,
            before=_WRITTEN,
            code="written(param)",
            uses=(written,),
        ),
        Edit(
            f"{_INIT}._convert_to_deepspeed_param.<locals>.all_gather_coalesced",
            before="params = sorted(params, key=lambda p: p.ds_id)",
            code="wait_for_second_copies(params)",
            uses=(wait_for_second_copies,),
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/5059": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/5216": "fixed in 0.13.5",
    },
    fixed_in="0.13.5",
    present=(Source(_BACKWARD, "mean_loss = loss.mean().detach()"),),
    fixed=(
        Source(_SECOND, "get_accelerator().current_stream().synchronize()"),
        # newer: of a function's name in its class's
        Source(
            _SECOND,
            "if not get_accelerator().resolves_data_dependency():\n"
            "    get_accelerator().current_stream().synchronize()",
        ),
    ),
    ranks=2,
    config=lambda job: job.stage == 3 and job.number("zero_optimization", "zero_hpz_partition_size") > 1,
)


def reproduce(lab: Lab) -> str:
    from packaging.version import Version

    lab.require_ranks(2)
    if not lab.emulated:
        raise CannotTell("whether it is read too early depends on timing, which only the emulated device controls")
    lab.late_streams()
    release = Version(lab.deepspeed.__version__)
    if release < Version("0.13.0"):
        raise CannotTell("before 0.13.0, hpZ does not run beside this torch")
    import torch

    from ._second_copies import BEFORE, train

    # The first copies are written before the first step, and through 0.13.1 no others. With these options, parameters
    # are released after the forward pass in the second step, too, as they are in a model larger than the defaults.
    steps = 1 if release < Version("0.13.2") else 2
    options = {"stage3_max_reuse_distance": 0, "stage3_prefetch_bucket_size": 0}
    training = train(lab, width=16, partition_size=2, steps=steps, **options)
    return training.compare(torch.full_like(training.right, BEFORE))
