"""DeepSpeed's Adam resumed from a checkpoint of torch's Adam: KeyError, 'bias_correction'.

Why: a checkpoint brings the optimizer's groups with their options. DeepSpeedCPUAdam and FusedAdam read
    `bias_correction` in them, which the groups of torch's Adam and AdamW lack: a job that turns optimizer offload on,
    or `torch_adam` off, when it resumes fails in its first step.
How: a group without it gets the value of this job's optimizer, True unless the config says otherwise.
Changes: only that the job trains; moments, step count and rates are the checkpoint's, which any release resumes.
Workaround: Scripts set it in `engine.optimizer.param_groups` after `load_checkpoint`. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_CPU = "deepspeed.ops.adam.cpu_adam:DeepSpeedCPUAdam"
_FUSED = "deepspeed.ops.adam.fused_adam:FusedAdam.step"
_EFFECT = "a group of torch's Adam was given bias_correction (unpatched: KeyError in step)"
_MISSING = "'bias_correction' not in group"

PATCH = Patch(
    title="DeepSpeed's Adam resumed from a checkpoint of torch's Adam: KeyError, 'bias_correction'",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.12.0"},
    changes=(
        Edit(
            f"{_CPU}.__setstate__",
            after="group.setdefault('amsgrad', False)",
            effect=_EFFECT,
            when=_MISSING,
            code="group.setdefault('bias_correction', self.defaults.get('bias_correction', True))",
        ),
        Edit(
            _FUSED,
            before="bias_correction = 1 if group['bias_correction'] else 0",
            effect=_EFFECT,
            when=_MISSING,
            code="group.setdefault('bias_correction', self.defaults.get('bias_correction', True))",
        ),
    ),
    symptom=r"KeyError: '?bias_correction",
    upstream={
        "https://github.com/hiyouga/LlamaFactory/issues/10286": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/564": "introduced",
    },
    present=(
        Source(f"{_CPU}.__init__", "self.opt_id = DeepSpeedCPUAdam.optimizer_id"),
        Source(_FUSED, "bias_correction = 1 if group['bias_correction'] else 0"),
    ),
)

_STEPS = 4


def reproduce(lab: Lab) -> str:
    models, torch = lab.models, lab.torch
    from .. import _half as half

    half.provide_fused_adam(lab)
    half.provide_cpu_adam(lab)
    batches = [models.regression_batch(rank=0, step=step) for step in range(_STEPS)]
    options = {"lr": 0.01, "weight_decay": 0.1}
    model = models.MLP()
    right = lab.reference.train(model, [[batch] for batch in batches], model.loss, "AdamW", **options).parameters

    def engine_with(torch_adam: bool, offload: bool, stage: int) -> Any:
        zero: dict[str, Any] = {"stage": stage, **({"offload_optimizer": {"device": "cpu"}} if offload else {})}
        model = models.MLP()
        config = {
            "train_micro_batch_size_per_gpu": len(batches[0][0]),
            "optimizer": {"type": "AdamW", "params": {**options, "torch_adam": torch_adam}},
            "zero_optimization": zero,
        }
        return lab.initialize(model, config, model_parameters=model.parameters())

    def train(engine: Any, part: list[Any]) -> None:
        for inputs, targets in part:
            outputs = engine(inputs.to(lab.device))
            engine.backward(torch.nn.functional.mse_loss(outputs, targets.to(lab.device)))
            engine.step()

    seen, matched = [], ""
    for stage, offload in ((2, True), (3, True), (1, False)):
        engine = engine_with(torch_adam=True, offload=False, stage=stage)
        train(engine, batches[:2])
        engine.save_checkpoint(str(lab.tmp / f"{stage}"))
        engine = engine_with(torch_adam=False, offload=offload, stage=stage)
        engine.load_checkpoint(str(lab.tmp / f"{stage}"))
        try:
            train(engine, batches[2:])
        except KeyError as error:
            if error.args != ("bias_correction",):
                raise
            seen.append(f"ZeRO-{stage}{' with offload' if offload else ''}")
            continue
        matched = lab.reference.compare(lab.parameters(engine), right, after=f"resumed, after {_STEPS} steps")
    if seen:
        raise BugPresent(f"KeyError: 'bias_correction' in the first step: {', '.join(seen)}")
    return matched
