"""ZeRO-1 and ZeRO-2, a parameter larger than the bucket, gradients sent in another dtype: RuntimeError in backward.

Why: a parameter with more elements than `reduce_bucket_size` is reduced without a bucket. Since 0.17.2 there is one
    bucket per dtype of the communication, but such a parameter is noted down under its own dtype. Where the two differ
    (see zero12_full_bucket_dtype for when) it is not found again, and as many elements as it has are looked for
    in the bucket, which is smaller: "start (0) + length (…) exceeds dimension size (…)".
How: the parameter is noted down under the dtype in which its gradient is sent.
Upstream: https://github.com/deepspeedai/DeepSpeed/issues/7653, brought by
    https://github.com/deepspeedai/DeepSpeed/pull/6993 (0.17.2), fixed by
    https://github.com/deepspeedai/DeepSpeed/pull/7660 (0.18.2). Up to 0.18.0 the same job dies earlier, of
    zero12_full_bucket_dtype.
Retire: when DeepSpeed 0.18.1 is no longer supported here.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ADD = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.reduce_independent_p_g_buckets_and_remove_grads"

PATCH = Patch(
    title="ZeRO-1/2: RuntimeError for a parameter larger than the bucket when gradients are sent in another dtype",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.17.2,<0.18.2"},
    changes=(
        Edit(
            _ADD,
            replace="self.extra_large_param_to_reduce[param.dtype] = param",
            code="self.extra_large_param_to_reduce[self.get_param_comm_dtype(param)] = param",
        ),
    ),
    symptom=r"in reduce_ipg_grads[\s\S]*start \(0\) \+ length \(\d+\) exceeds dimension size",
    upstream=(
        "https://github.com/deepspeedai/DeepSpeed/issues/7653",
        "https://github.com/deepspeedai/DeepSpeed/pull/6993",
        "https://github.com/deepspeedai/DeepSpeed/pull/7660",
    ),
    fixed_in="0.18.2",
    fixed=(Source(_ADD, "self.extra_large_param_to_reduce[comm_dtype] = param"),),
)

_WIDTH = 8
_LEARNING_RATE = 0.5
_STEPS = 2


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    from dsfix.lab.reference import largest_difference, train

    # the loss is linear in the parameters, and all numbers are exact in fp16
    inputs = [torch.arange(float(_WIDTH)).view(1, _WIDTH) / 4 * (step + 1) for step in range(_STEPS)]
    model = _ones(torch)
    expected = train(model, [[(each,)] for each in inputs], lambda x: model(x).sum(), "SGD", lr=_LEARNING_RATE)

    model = _ones(torch)
    config = {
        "fp16": {"enabled": True, "loss_scale": 1},
        "communication_data_type": "fp32",
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": 2, "reduce_bucket_size": _WIDTH // 2},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for each in inputs:
        loss = engine(each.to(lab.device, torch.float16)).float().sum()
        try:
            engine.backward(loss)
        except RuntimeError as error:
            passed = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
            if "exceeds dimension size" in str(error) and "reduce_ipg_grads" in passed:
                raise BugPresent(f"in reduce_ipg_grads: {str(error).splitlines()[0]}") from error
            raise
        engine.step()
    difference = largest_difference(lab.parameters(engine), expected.parameters)
    assert difference.relative < 1e-4, f"after {_STEPS} steps {difference}"
    return f"after {_STEPS} steps the parameters are plain PyTorch's within {difference.relative:.1e}"


def _ones(torch: Any) -> Any:
    model = torch.nn.Linear(_WIDTH, 1)
    torch.nn.init.ones_(model.weight)
    torch.nn.init.ones_(model.bias)
    return model
