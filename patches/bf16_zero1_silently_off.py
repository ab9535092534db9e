"""bf16 with ZeRO-1 and gradient accumulation in fp32: gets neither the one nor the other.

Why: `data_types.grad_accum_dtype: "fp32"` with bf16 and ZeRO-1 asks for BF16_Optimizer. Since 0.17.6 the names of the
    two bf16 wrappers, "with fp32 accumulation" and "without ZeRO", are the same string, "bf16", and the second is tried
    first: the engine takes FP16_Optimizer or FP16_UnfusedOptimizer. Each rank holds all fp32 weights and optimizer
    states, gradients are accumulated in bf16; checkpoints of it cannot be loaded.
How: with ZeRO on, "bf16" means BF16_Optimizer. On 0.18.3 and 0.18.4 it gets the attributes by which the engine
    scales a loss, and adds each gradient to the fp32 ones at once (`bf16.immediate_grad_update`): the engine of these
    releases reduces before it would add the last micro-batch's. Without ZeRO, and for pipelines without it, all stays.
Changes: fp32 weights and optimizer states are split among the ranks, gradients are accumulated in fp32: numbers change
    by bf16's rounding. A step whose gradients are all zero, or not finite, is an AssertionError of BF16_Optimizer, as
    before 0.17.6 and since 0.18.5: bf16_nonfinite_step_ends_job. A checkpoint written without the patch has no
    optimizer state: load it with `load_optimizer_states=False`, and the job goes on from its bf16 weights, with an
    optimizer that starts anew.
Upstream: brought by https://github.com/deepspeedai/DeepSpeed/pull/7515 (0.17.6), fixed by
    https://github.com/deepspeedai/DeepSpeed/pull/7788 (0.18.5). The order of reducing and adding:
    https://github.com/deepspeedai/DeepSpeed/pull/7985 (0.19.0).
Retire: when DeepSpeed 0.18.4 is no longer supported here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
_INIT = "deepspeed.runtime.bf16_optimizer:BF16_Optimizer.__init__"

PATCH = Patch(
    title="bf16 + ZeRO-1 + gradient accumulation in fp32: nothing is partitioned, gradients accumulate in bf16",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.17.6,<0.18.5"},
    changes=(
        Edit(
            f"{_ENGINE}._configure_optimizer",
            replace="[FP16, DDP_BFLOAT16]",
            # with ZeRO on, the only wrapper of this name is BFLOAT16
            code="([FP16] if self.zero_optimization() else [FP16, DDP_BFLOAT16])",
        ),
        Edit(
            _INIT,
            after="self.immediate_grad_update = bfloat16_config.immediate_grad_update",
            code="if hasattr(self, 'scale_if_loss'):\n"
            "    from deepspeed.runtime.fp16.loss_scaler import LossScaler\n"
            "    self.immediate_grad_update = True\n"
            "    self.custom_loss_scaler, self.external_loss_scale = False, None\n"
            "    self.torch_autocast_gradscaler, self.loss_scaler = None, LossScaler(scale=1.0)",
        ),
    ),
    symptom="",
    upstream=(
        "https://github.com/deepspeedai/DeepSpeed/pull/7515",
        "https://github.com/deepspeedai/DeepSpeed/pull/7788",
    ),
    fixed_in="0.18.5",
    present=(Source("deepspeed.runtime.constants", "DDP_BFLOAT16 = 'bf16'"),),
    fixed=(
        Source("deepspeed.runtime.constants", "DDP_BFLOAT16 = 'ddp_bf16'"),
        Source(_INIT, "self.custom_loss_scaler = False"),
    ),
    ranks=2,
)

_LEARNING_RATE = 0.05
_MICRO_BATCHES = 16  # enough for bf16 sums to differ


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    assert lab.torch  # before the next, which import it without the device
    from dsfix.lab import half
    from dsfix.lab.models import regression_batch

    batches = [[regression_batch(rank, i) for i in range(_MICRO_BATCHES)] for rank in range(lab.world_size)]
    expected = half.sgd_weights(batches[0] + batches[1], _LEARNING_RATE)
    own = half.zero1_sgd_weights(lab, batches[lab.rank], _LEARNING_RATE)
    difference = half.zero1_difference(lab, own, expected)
    alone = half.sgd_weights(batches[lab.rank], _LEARNING_RATE)
    if half.zero1_difference(lab, own, alone) < 1e-5 < difference:
        raise CannotTell("another fault of this release: BF16_Optimizer reduces no gradients at all (to 0.13.2)")
    held = f"each of {lab.world_size} ranks holds {own.numel()} of {expected.numel()} fp32 weights"
    done = f"after one step of {_MICRO_BATCHES} micro-batches"
    if own.numel() == expected.numel() and 1e-5 < difference < 0.1:
        raise BugPresent(f"{held}; {done} with sums in bf16 they are off by {difference:.1e}")
    assert own.numel() < expected.numel(), held
    assert difference < 1e-5, f"{done} the weights are off by {difference:.1e}"
    return f"{held}; {done} they are plain PyTorch's within {difference:.1e}"
