"""ZeRO-3 with gloo: several parameters gathered at once are used before all of them have arrived.

Why: the parameters that stay gathered are gathered again after each step, several at once, and so are those of
    `GatheredParameters([…])`. DeepSpeed starts one all-gather per parameter and waits for the last one only. NCCL
    completes them in order; gloo, on CPU ranks, runs them on several threads, and the last one may finish first: for a
    moment another parameter is whatever its memory held before. Losses and weights are garbage or nan, in a few runs.
How: all of them are waited for, as in 0.19.8. With NCCL each wait orders two streams and does not block the host.
Changes: the runs in which a parameter was used too early; all others give the same numbers. A checkpoint written
    without the patch loads, but its weights may be such numbers.
Workaround: Scripts gather one parameter at a time, and let none stay gathered (`stage3_param_persistence_threshold:
    0`). You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_GATHER = "deepspeed.runtime.zero.partition_parameters:Init._allgather_params_coalesced"

PATCH = Patch(
    title="ZeRO-3 on CPU ranks, or on GPUs with gloo: garbage weights or nan in some runs",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.19.8"},
    changes=(
        Edit(
            _GATHER,
            replace="launch_handles[-1].wait()",
            code="for handle in launch_handles:\n    handle.wait()",
            effect=RAN,
            when="len(launch_handles) > 1",
        ),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/issues/8381": "reported"},
    fixed_in="0.19.8",
    fixed=(Source(_GATHER, "for handle in launch_handles:\n    handle.wait()"),),
    ranks=2,
    device="cpu",
)

_LEARNING_RATE, _BEFORE = 0.1, 7.0


def _late(gather: Any) -> Any:
    """An all-gather that, if asynchronous, ends when it is waited for."""

    class Late:
        def __init__(self, output: Any, *args: Any, **options: Any) -> None:
            self._rest = (output, args, options)
            output.fill_(_BEFORE)

        def wait(self) -> None:
            output, args, options = self._rest
            gather(output, *args, **options)

    def call(output: Any, *args: Any, async_op: bool = False, **options: Any) -> Any:
        return (Late if async_op else gather)(output, *args, **options)

    return call


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    batch = [lab.models.regression_batch(rank, step=0) for rank in (0, 1)]
    model = lab.models.MLP()
    right = lab.reference.train(model, [batch], model.loss, "SGD", lr=_LEARNING_RATE).parameters
    *others, _ = right
    early = {**right, **{name: right[name] * 0 + _BEFORE for name in others}}

    model = lab.models.MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(batch[0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": 3},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    communication = lab.deepspeed.comm
    communication.all_gather_into_tensor = _late(communication.all_gather_into_tensor)
    inputs, targets = batch[lab.rank]
    engine.backward(lab.torch.nn.functional.mse_loss(engine(inputs), targets))
    engine.step()
    result: str = lab.reference.compare(
        lab.parameters(engine),
        right,
        {"what their memory held before, except for the last one": early},
        after="after one step",
    )
    return result
