"""ZeRO, 0.12: the next step undoes load_checkpoint(load_optimizer_states=False).

Why: ZeRO's optimizer holds fp32 copies of the weights, its own even in fp32. `load_checkpoint` loads the checkpoint's
    weights into the model, and the copies together with the optimizer state. When that is not requested, the copies
    keep their values; the first step updates them and writes them to the model: the loaded weights are gone. Nothing
    fails. With `load_module_only=True` fp16 takes the copies from the model, bf16 and fp32 do not.
How: with `load_optimizer_states=False` the copies are taken from the model's weights, as in 0.13.0, except where they
    already round to the loaded weight: loading what the model already has, as scripts do to verify a checkpoint,
    changes nothing. Optimizer states or parameters offloaded to NVMe are not covered.
Changes: jobs that load this way continue from the loaded weights, rounded to fp16 or bf16. A job that was resumed
    without the patch, and its checkpoints, started from the weights that the script initialized or loaded into the
    model before `deepspeed.initialize`.
Workaround: Scripts call `engine.optimizer.refresh_fp32_params()` after `load_checkpoint`. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import Edit, Patch, Severity, Source
from dsfix.process.effects import ran

from .._shared import take_weights

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
_LOAD = f"{_ENGINE}.load_checkpoint"


def take_loaded(engine: Any) -> None:
    """Sets the optimizer's copies of the weights to those of the model."""
    optimizer = engine.optimizer
    if engine.load_universal_checkpoint() or not hasattr(optimizer, "_restore_from_bit16_weights"):
        return  # the former loads no weights into the model; the latter has no copies
    on_nvme = getattr(optimizer, "swap_optimizer", False) or getattr(optimizer, "params_in_nvme_and_cpu", False)
    if not on_nvme:
        ran(__name__)  # the weights may be those that the optimizer has
        take_weights(optimizer)


PATCH = Patch(
    title="ZeRO: the next step undoes load_checkpoint(load_optimizer_states=False)",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.13.0"},
    changes=(
        Edit(
            _LOAD,
            before="if self._optimizer_has_ckpt_event_epilogue():\n    ...",
            code="if load_path is not None and not load_optimizer_states and self.zero_optimization():\n"
            "    take_loaded(self)",
            uses=(take_loaded,),
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/4017": "reported",
        "https://github.com/deepspeedai/DeepSpeed/issues/4944": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/4141": "fixed in 0.13.0",
    },
    fixed_in="0.13.0",
    present=(
        Source(
            _LOAD,
            "load_zero_checkpoint = load_optimizer_states and load_path is not None and"
            " (self.zero_optimization() or self.bfloat16_enabled())",
        ),
    ),
    fixed=(
        Source(
            _LOAD,
            "load_zero_checkpoint = load_path is not None and (self.zero_optimization() or self.bfloat16_enabled())",
        ),
    ),
)

_LEARNING_RATE = 0.1
_STEPS = 3


def reproduce(lab: Lab) -> str:
    return "; ".join(_after_loading(lab, stage) for stage in (1, 2, 3))


def _after_loading(lab: Lab, stage: int) -> str:
    from . import _checkpoints as checkpoints

    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(_STEPS + 1)]
    directory = str(lab.tmp / str(stage))
    engine = _engine(lab, stage)
    checkpoints.train(lab, engine, batches[:_STEPS])
    saved = lab.parameters(engine)
    engine.save_checkpoint(directory)

    resumed = _engine(lab, stage)
    initial = lab.parameters(resumed)
    loaded, _ = resumed.load_checkpoint(directory, load_optimizer_states=False)
    assert loaded, "no checkpoint was found"
    difference = lab.reference.largest_difference(lab.parameters(resumed), saved)
    assert difference.absolute == 0.0, f"loaded weights: {difference}"
    checkpoints.train(lab, resumed, batches[_STEPS:])

    model = lab.models.MLP()
    model.load_state_dict(saved)
    right = lab.reference.train(model, [batches[_STEPS:]], model.loss, "SGD", lr=_LEARNING_RATE).parameters
    # the update, computed at the checkpoint's weights, applied to the initial ones
    gone_back = {name: initial[name] + right[name] - saved[name] for name in saved}
    return f"ZeRO-{stage}: " + lab.reference.compare(
        lab.parameters(resumed),
        right,
        {"those of a step from the initial weights": gone_back},
        after="one step after loading",
    )


def _engine(lab: Lab, stage: int) -> Any:
    model = lab.models.MLP()
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": stage},
    }
    return lab.initialize(model, config, model_parameters=model.parameters())
