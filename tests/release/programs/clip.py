"""Calls the function that the founding patch edits with a norm that is a tensor, and with one that is a number."""

import json
import sys
import types

import dsfix  # isort: skip
import torch
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3


def clipped(norm):
    tensor = torch.ones(2)
    tensor.grad = torch.ones(2)
    fake = types.SimpleNamespace(
        loss_scale=1.0, clip_grad=1.0, device=torch.device("cpu"), fp32_partitioned_groups_flat=[tensor]
    )
    try:
        DeepSpeedZeroOptimizer_Stage3.unscale_and_clip_grads(fake, 0, norm)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return [round(each, 4) for each in tensor.grad.tolist()]


result = {
    "outcomes": {each.id: each.outcome.value for each in dsfix.report()},
    "tensor": clipped(torch.tensor(4.0)),
    "number": clipped(4.0),
}
with open(sys.argv[1], "w", encoding="utf-8") as out:
    json.dump(result, out)
