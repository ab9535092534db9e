"""ZeRO with `reduce_bucket_size` 0: ZeroDivisionError in the first backward pass.

Why: through 0.19.5 the config accepts 0, and a line of the log divides by it. 0.19.6 and later reject the config.
How: 0 is treated as 1: each gradient is reduced separately. `python -m dsfix check` asks for 1 or more, which 0.19.6
    requires.
Workaround: Scripts set a positive number. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OPTIMIZERS = (
    "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer",
    "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3",
)

PATCH = Patch(
    title="ZeRO: reduce_bucket_size 0 is accepted and ends in a ZeroDivisionError",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.12.0,<0.19.6"},
    changes=tuple(
        Edit(
            f"{optimizer}.__init__",
            replace="self.reduce_bucket_size = int(reduce_bucket_size)",
            code="self.reduce_bucket_size = int(reduce_bucket_size) or 1",
            effect="reduce_bucket_size 0 was treated as 1 (unpatched: ZeroDivisionError)",
            when="int(reduce_bucket_size) == 0",
        )
        for optimizer in _OPTIMIZERS
    ),
    symptom=r"in report_ipg_memory_usage\n[\s\S]{0,200}ZeroDivisionError",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/8260": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/8266": "fixed in 0.19.6",
    },
    fixed_in="0.19.6",
    # the fix is in the body of a class, which is no evidence: another one of 0.19.6
    fixed=(
        Source("deepspeed.utils.mixed_precision_linkage:_init_lp_to_hp_mapping", "if lp_param.numel() > 0:\n    ..."),
    ),
    config=lambda job: job.stage in (1, 2, 3) and job.get("zero_optimization", "reduce_bucket_size") == 0,
)

_LEARNING_RATE = 0.1
_STEPS = 2


def reproduce(lab: Lab) -> str:
    return "; ".join(_train(lab, stage) for stage in (1, 2, 3))


def _train(lab: Lab, stage: int) -> str:
    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(_STEPS)]
    model = lab.models.MLP()
    steps = [[batch] for batch in batches]
    right = lab.reference.train(model, steps, model.loss, "SGD", lr=_LEARNING_RATE).parameters

    model = lab.models.MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": stage, "reduce_bucket_size": 0},
    }
    try:
        engine = lab.initialize(model, config, model_parameters=model.parameters())
    except ValueError as error:
        if "reduce_bucket_size" not in str(error):
            raise
        return f"with ZeRO-{stage}: {type(error).__name__}, reduce_bucket_size is rejected"
    for inputs, targets in batches:
        try:
            engine.backward(lab.torch.nn.functional.mse_loss(engine(inputs.to(lab.device)), targets.to(lab.device)))
        except ZeroDivisionError as error:
            raise BugPresent(f"with ZeRO-{stage}: {error}") from error
        engine.step()
    return lab.reference.compare(lab.parameters(engine), right, after=f"with ZeRO-{stage}, after {_STEPS} steps")
