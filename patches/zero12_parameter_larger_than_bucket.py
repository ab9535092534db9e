"""ZeRO-1 and ZeRO-2, a parameter larger than the bucket, gradients sent in another dtype: RuntimeError in backward.

Why: a parameter with more elements than `reduce_bucket_size` is reduced without a bucket. Since 0.17.2 there is one
    bucket per communication dtype, but such a parameter is recorded under its own dtype. Where the two differ (see
    zero12_full_bucket_dtype for when) it is not found again, and its number of elements is read from the bucket, which
    is smaller: "start (0) + length (…) exceeds dimension size (…)". Through 0.18.0 the same job crashes earlier:
    zero12_full_bucket_dtype.
How: the parameter is recorded under the dtype in which its gradient is sent.
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
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/7653": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/6993": "introduced in 0.17.2",
        "https://github.com/deepspeedai/DeepSpeed/pull/7660": "fixed in 0.18.2",
    },
    fixed_in="0.18.2",
    fixed=(Source(_ADD, "self.extra_large_param_to_reduce[comm_dtype] = param"),),
)

_WIDTH = 8
_LEARNING_RATE = 0.5
_STEPS = 2


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    # the loss is linear in the parameters, and all numbers are exact in fp16
    inputs = [torch.arange(float(_WIDTH)).view(1, _WIDTH) / 4 * (step + 1) for step in range(_STEPS)]
    model = _ones(torch)
    expected = lab.reference.train(
        model, [[(each,)] for each in inputs], lambda x: model(x).sum(), "SGD", lr=_LEARNING_RATE
    )

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
    return lab.reference.compare(lab.parameters(engine), expected.parameters, after=f"after {_STEPS} steps")


def _ones(torch: Any) -> Any:
    model = torch.nn.Linear(_WIDTH, 1)
    torch.nn.init.ones_(model.weight)
    torch.nn.init.ones_(model.bias)
    return model
