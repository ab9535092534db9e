"""ZeRO-1/2 on CPU ranks: RuntimeError "Output 0 of Split is a view and is being modified inplace".

Why: 0.18.7 to 0.18.9 build the flat buffer of the parameters from the parameters themselves, and autograd records it:
    the buffer is the output of an operation. `step` gathers the updated partitions into it, which the gloo backend does
    piece by piece, on views of it. torch rejects that at the end of the first step. Ranks on GPUs (NCCL) and a single
    rank do not gather this way.
How: the buffer is detached once it is built, as upstream does. 0.12.4 to 0.12.6 show the same message for another
    reason and are not patched: there, ZeRO-1 on CPU ranks does not average the gradients, and an error is better.
Workaround: Scripts call `engine.step()` under `torch.no_grad()`. You can keep it.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_INIT = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.__init__"
_FLATTEN = "self.flatten_dense_tensors_aligned(self.round_robin_bit16_groups[i], alignment, use_cpu_data=False)"
_MESSAGE = "Output 0 of Split"

PATCH = Patch(
    title="ZeRO-1/2 on CPU ranks: RuntimeError, Output 0 of Split is a view and is being modified inplace",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.18.7,<0.19.0"},
    changes=(
        Edit(
            _INIT,
            before="self.bit16_groups_flat.append(flattened_buffer)",
            code="flattened_buffer = flattened_buffer.detach()",
            effect="the buffer of the parameters was detached (unpatched: RuntimeError in step)",
            when="flattened_buffer.grad_fn is not None and flattened_buffer.device.type == 'cpu'"
            " and dist.get_world_size(group=self.real_dp_process_group[i]) > 1",
        ),
    ),
    symptom=rf"all_gather_(into_tensor_)?dp_groups[\s\S]*{_MESSAGE}",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7828": "introduced in 0.18.7",
        "https://github.com/deepspeedai/DeepSpeed/pull/7948": "fixed in 0.19.0",
        "https://github.com/deepspeedai/DeepSpeed/pull/4705": "related: the same message in 0.12.4 to 0.12.6",
    },
    fixed_in="0.19.0",
    present=(Source(_INIT, f"flattened_buffer = {_FLATTEN}"),),
    fixed=(Source(_INIT, f"flattened_buffer = {_FLATTEN}.detach()"),),
    ranks=2,
    device="cpu",
)

_LEARNING_RATE = 0.1
_STEPS = 2


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    torch = lab.torch
    if tuple(map(int, lab.deepspeed.__version__.split(".")[:2])) < (0, 13):
        raise CannotTell(
            "through 0.12.6 ZeRO-1 does not average the gradients of CPU ranks; 0.12.4 to 0.12.6 fail the same way"
        )
    steps = [[lab.models.regression_batch(rank=rank, step=step) for rank in range(2)] for step in range(_STEPS)]
    model = lab.models.MLP()
    expected = lab.reference.train(model, steps, model.loss, "SGD", lr=_LEARNING_RATE)
    reports = []
    for stage in (1, 2):
        model = lab.models.MLP()
        config = {
            "train_micro_batch_size_per_gpu": len(steps[0][0][0]),
            "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
            "zero_optimization": {"stage": stage},
        }
        engine = lab.initialize(model, config, model_parameters=model.parameters())
        for step in steps:
            inputs, targets = step[lab.rank]
            engine.backward(torch.nn.functional.mse_loss(engine(inputs), targets))
            try:
                engine.step()
            except RuntimeError as error:
                passed = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
                if _MESSAGE in str(error) and "step" in passed and any(name.endswith("dp_groups") for name in passed):
                    raise BugPresent(f"ZeRO-{stage}, at the first step: {str(error).split('. ')[0]}") from error
                raise
        after = f"ZeRO-{stage}: after {_STEPS} steps of 2 ranks"
        reports.append(lab.reference.compare(lab.parameters(engine), expected.parameters, after=after))
    return "; ".join(reports)
