"""Pipeline parallelism with a loss in fp16 or bf16: every stage except the last reports a wrong loss.

Why: through 0.12.3 the last stage broadcasts its two losses in their own precision, two bytes each, and the other
    stages receive them into two 4-byte numbers: the bits of both losses are read as one float32, and the second number,
    which `train_batch()` returns and rank 0 prints, gets nothing. A loss in fp64 is misread in the same way. Nothing
    fails, and the training itself is right; early stopping, logs and everything else that uses the loss are not.
How: the losses are broadcast in fp32, which the other stages expect, as in upstream's fix.
Changes: the loss that `train_batch()` returns and logs on all stages but the last. Parameters and
    checkpoints do not change.
Workaround: The loss function returns fp32. You can keep it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_AGGREGATE = "deepspeed.runtime.pipe.engine:PipelineEngine._aggregate_total_loss"

PATCH = Patch(
    title="Pipeline parallelism with a loss in fp16 or bf16: every stage except the last reports a wrong loss",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.12.4"},
    changes=(
        Edit(
            _AGGREGATE,
            after="losses = torch.stack([self.dp_group_loss, agg_loss])",
            code="losses = losses.float()",
            effect="the loss was sent in fp32 (unpatched: other stages receive a wrong number)",
            when="losses.dtype != torch.float32 and self.is_pipe_parallel",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/4726": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/4727": "fixed in 0.12.4",
    },
    fixed_in="0.12.4",
    fixed=(Source(_AGGREGATE, "losses = torch.stack([self.dp_group_loss, agg_loss]).float()"),),
    ranks=2,
)

_MICRO_BATCHES, _LEARNING_RATE = 2, 0.1


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    torch = lab.torch
    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(_MICRO_BATCHES)]
    model: Any = lab.models.MLP(depth=3)
    with torch.no_grad():
        right = sum(float(model.loss(*batch).bfloat16()) for batch in batches) / _MICRO_BATCHES

    def loss(outputs: Any, targets: Any) -> Any:
        return torch.nn.functional.mse_loss(outputs, targets).bfloat16()

    module = lab.deepspeed.pipe.PipelineModule(
        layers=[*model.blocks, model.head], num_stages=2, loss_fn=loss, partition_method="uniform"
    )
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "gradient_accumulation_steps": _MICRO_BATCHES,
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
    }
    engine = lab.initialize(module, config, model_parameters=list(module.parameters()))
    seen = float(engine.train_batch(data_iter=iter(batches)))
    if math.isclose(seen, right, rel_tol=2**-7):
        return f"stage {engine.stage_id} reports the loss {seen:.4f}, plain PyTorch {right:.4f}"
    if engine.is_last_stage():
        raise AssertionError(f"the last stage reports the loss {seen:.4f}, plain PyTorch {right:.4f}")
    raise BugPresent(f"stage {engine.stage_id} reports the loss {seen:.4g}, plain PyTorch {right:.4f}")
