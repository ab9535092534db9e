"""ZeRO-3: after the first full bucket of a backward pass, each parameter's gradient is reduced separately.

Why: 0.17.2 counts the elements in the bucket, but does not reset the count to 0 after the bucket is reduced. From then
    on the bucket counts as full: every gradient is a separate reduction, and none is copied into the contiguous buffer.
    The numbers are right; a model with many small parameters spends its time in small collectives. A model whose
    gradients all fit into `reduce_bucket_size` is not affected.
How: the count is reset after each reduction, as in 0.17.3 and later.
Workaround: Scripts wrap the function that reduces a bucket, to set `elements` to 0 afterwards; others set a larger
    `reduce_bucket_size`. You can keep it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_MODULE = "deepspeed.runtime.zero.stage3"
_OPTIMIZER = f"{_MODULE}:DeepSpeedZeroOptimizer_Stage3"
_REDUCE = f"{_OPTIMIZER}.__reduce_and_partition_ipg_grads"

PATCH = Patch(
    title="ZeRO-3: each gradient is reduced separately after the first full bucket",
    severity=Severity.USABILITY,
    affects={"deepspeed": "==0.17.2"},
    changes=(Edit(_REDUCE, after="params_in_bucket.clear()", code="bucket.elements = 0", effect=RAN),),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/7415": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/6993": "introduced in 0.17.2",
        "https://github.com/deepspeedai/DeepSpeed/pull/7418": "fixed in 0.17.3",
    },
    fixed_in="0.17.3",
    present=(Source(f"{_OPTIMIZER}.__add_grad_to_ipg_bucket", "bucket.elements += param.grad.numel()"),),
    fixed=(Source(_REDUCE, "params_in_bucket.clear()\nbucket.elements = 0"),),
    config=lambda job: job.stage == 3,
)

_WIDTH = 16
_PER_BUCKET = 4
_LAYERS = 2 * _PER_BUCKET
_LEARNING_RATE = 0.1


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    batch = lab.models.regression_batch(rank=0, step=0, width=_WIDTH)
    model = _layers(torch)
    right = lab.reference.train(model, [[batch]], lambda x, _: model(x).square().mean(), "SGD", lr=_LEARNING_RATE)

    model = _layers(torch)
    config = {
        "train_micro_batch_size_per_gpu": len(batch[0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": 3, "reduce_bucket_size": _PER_BUCKET * _WIDTH * _WIDTH},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    stage3: Any = sys.modules[_MODULE]
    reduce, counts = stage3.reduce_scatter_coalesced, []

    def counted(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        counts.append(len(tensors))
        return reduce(tensors, *args, **kwargs)

    stage3.reduce_scatter_coalesced = counted
    try:
        engine.backward(engine(batch[0].to(lab.device)).square().mean())
    finally:
        stage3.reduce_scatter_coalesced = reduce
    engine.step()
    match = lab.reference.compare(lab.parameters(engine), right.parameters)
    sent = f"{_LAYERS} gradients, {_PER_BUCKET} per bucket, are sent in {len(counts)} reductions, of {counts}"
    if counts == [_PER_BUCKET] + [1] * (_LAYERS - _PER_BUCKET):
        raise BugPresent(sent)
    assert counts == [_PER_BUCKET] * (_LAYERS // _PER_BUCKET), sent
    return f"{sent}; {match}"


def _layers(torch: Any) -> Any:
    model = torch.nn.Sequential(*(torch.nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(_LAYERS)))
    for layer in model:
        torch.nn.init.eye_(layer.weight)
    return model
