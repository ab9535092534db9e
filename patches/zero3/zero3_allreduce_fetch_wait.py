"""ZeRO-3 with `stage3_use_all_reduce_for_fetch_params`: TypeError, unexpected keyword argument 'handle_dependency'.

Why: since 0.16.3 the code that waits for gathered parameters passes `handle_dependency`, which the handle of
    `stage3_use_all_reduce_for_fetch_params` does not accept through 0.17.2. The first forward pass on several ranks
    fails.
How: that handle's `wait` accepts the argument and ignores it: it releases no memory of another stream.
Workaround: Scripts replace `AllReduceCoalescedHandle.wait` by a function that drops keyword arguments before it calls
    the original. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, CannotTell, Patch, Replace, Severity, Source
from dsfix.process.effects import ran

if TYPE_CHECKING:
    from dsfix.job import Job
    from dsfix.lab import Lab

_COORDINATOR = "deepspeed.runtime.zero.partitioned_param_coordinator"
_MESSAGE = "wait() got an unexpected keyword argument 'handle_dependency'"


def _with_argument(original: Any) -> Any:
    def wait(self: Any, handle_dependency: bool = True) -> None:
        ran(__name__)  # its default is what most callers pass
        original(self)

    return wait


def _meets(job: Job) -> bool:
    names = ("stage3_use_all_reduce_for_fetch_params", "use_all_reduce_for_fetch_params")
    return job.stage == 3 and any(job.get("zero_optimization", name) is True for name in names)


PATCH = Patch(
    title="ZeRO-3 with stage3_use_all_reduce_for_fetch_params: TypeError in the first forward pass",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.16.3,<0.17.3"},
    changes=(Replace("deepspeed.runtime.zero.partition_parameters:AllReduceCoalescedHandle.wait", _with_argument),),
    symptom=r"wait\(\) got an unexpected keyword argument 'handle_dependency'",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/6694": "introduced in 0.16.3",
        "https://github.com/deepspeedai/DeepSpeed/pull/7414": "fixed in 0.17.3",
    },
    fixed_in="0.17.3",
    present=(
        Source(
            f"{_COORDINATOR}:PartitionedParameterCoordinator.fetch_sub_module",
            "self.__inflight_param_registry.pop(param).wait(handle_dependency=not fast_fetch)",
        ),
        # the fix is in a signature, which evidence cannot name: this line changed two days earlier
        Source(f"{_COORDINATOR}:iter_params", "compiler.disable"),
    ),
    fixed=(Source(f"{_COORDINATOR}:iter_params", 'compiler.enable(min_version="2.7.0")'),),
    ranks=2,
    config=_meets,
)

_LEARNING_RATE = 0.1
_STEPS = 3  # parameters are prefetched from the second on


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    torch = lab.torch
    deepspeed = lab.deepspeed
    from deepspeed.runtime.zero.config import (
        DeepSpeedZeroConfig,
    )

    if not hasattr(DeepSpeedZeroConfig(), "use_all_reduce_for_fetch_params"):
        raise CannotTell(f"{deepspeed.__version__} has no stage3_use_all_reduce_for_fetch_params")
    batches = [[lab.models.regression_batch(rank, step) for rank in range(2)] for step in range(_STEPS)]
    model = lab.models.MLP()
    right = lab.reference.train(model, batches, model.loss, "SGD", lr=_LEARNING_RATE)

    model = lab.models.MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {
            "stage": 3,
            "stage3_use_all_reduce_for_fetch_params": True,
            "stage3_param_persistence_threshold": 0,
        },
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for ranks in batches:
        inputs, targets = (tensor.to(lab.device) for tensor in ranks[lab.rank])
        try:
            outputs = engine(inputs)
        except TypeError as error:
            if _MESSAGE in str(error):
                raise BugPresent(f"in the first forward pass: TypeError: {error}") from error
            raise
        engine.backward(torch.nn.functional.mse_loss(outputs, targets))
        engine.step()
    return lab.reference.compare(lab.parameters(engine), right.parameters, after=f"after {_STEPS} steps")
