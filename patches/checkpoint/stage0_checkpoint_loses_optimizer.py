"""bf16 without ZeRO: checkpoints lack the optimizer state, and a resumed job goes back to its initial weights.

Why: since 0.17.6 a bf16 engine without ZeRO no longer has a ZeRO optimizer, but checkpointing still assumes one: the
    optimizer state is left to ZeRO's files, which are not written, and is not looked up in the file that is. A resumed
    job has the checkpoint's weights in the model and the initial ones in the optimizer's fp32 copies. The first step
    writes these copies to the model, and all progress is lost.
How: bf16 without ZeRO no longer counts as ZeRO when the optimizer is saved or loaded. If a checkpoint has no optimizer
    state (those written without the patch), or one that cannot be loaded, the fp32 copies are taken from its weights,
    with a warning. If the optimizer cannot return its state, the weights are saved without it, with a warning. An
    engine without an optimizer is unchanged.
Changes: a resumed job continues where it was. From a checkpoint written without the patch it gets the weights, rounded
    to bf16, and an optimizer without moments. A job that was resumed without the patch trained from the weights that
    the script initialized or loaded, not from the checkpoint's.
Workaround: Scripts put `engine.optimizer.state_dict()` into the client state or a separate file, and load it after
    load_checkpoint. You can keep it, but then the state is written twice. If they only call `refresh_fp32_params()`
    after load_checkpoint, they should stop: it rounds the fp32 copies that have just been loaded.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from dsfix.patch import Edit, Patch, Severity, Source
from dsfix.process.effects import ran, took_effect

from .._shared import take_weights

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
_TAKEN_FOR_ZERO = "self.zero_optimization() or self.bfloat16_enabled()"


def state_dict_of_optimizer(engine: Any, left_to_zero: bool) -> Any:
    """The optimizer state for the file with the weights; None if it is in ZeRO's files or cannot be had."""
    from deepspeed.runtime.bf16_optimizer import BF16_Optimizer

    if not engine.optimizer or engine.zero_optimization() or isinstance(engine.optimizer, BF16_Optimizer):
        return None  # its state is in ZeRO's files
    if not left_to_zero:
        return engine.optimizer.state_dict()
    ran(__name__)
    try:
        return engine.optimizer.state_dict()
    except Exception as error:  # the weights are saved without the patch, so they must be with it
        if engine.save_non_zero_checkpoint:
            from dsfix.log import warn

            warn(
                "stage0_checkpoint_loses_optimizer: the checkpoint is saved without the optimizer state: "
                f"{type(error).__name__}: {error}"
            )
        return None


def takes(optimizer: Any, saved: Any, path: str) -> bool:
    """Whether the optimizer could load the saved state; otherwise it gets the checkpoint's weights."""
    why = "it was written by DeepSpeed 0.17.6 to 0.18.4 with bf16 and without ZeRO"
    before = dict(vars(optimizer.optimizer))
    if saved is not None:
        try:
            optimizer.load_state_dict(saved, load_optimizer_states=True)
            took_effect(__name__, "the optimizer's saved state was loaded (unpatched: not loaded)")
            return True
        except Exception as error:  # ignored without the patch: the weights may be all that is wanted
            why = f"{type(error).__name__}: {error}"
            vars(optimizer.optimizer).update(before)
    from dsfix.log import warn

    warn(
        f"stage0_checkpoint_loses_optimizer: {path} has no optimizer state for this job ({why}); the optimizer starts "
        "from the checkpoint's weights"
    )
    took_effect(__name__, "the optimizer took the checkpoint's weights (unpatched: it keeps its own)")
    take_weights(optimizer)
    return False


PATCH = Patch(
    title="bf16 without ZeRO: checkpoints lack the optimizer state; a resumed job goes back to its initial weights",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.17.6,<0.18.5"},
    changes=(
        Edit(
            f"{_ENGINE}._save_checkpoint",
            after=f"zero_optimizer_state = {_TAKEN_FOR_ZERO}",
            code=f"from {__name__} import state_dict_of_optimizer",
        ),
        Edit(
            f"{_ENGINE}._save_checkpoint",
            replace="self.optimizer.state_dict() if self.optimizer and not zero_optimizer_state else None",
            code="state_dict_of_optimizer(self, zero_optimizer_state)",
        ),
        Edit(
            f"{_ENGINE}._load_checkpoint",
            replace=f"has_zero_optimizer_state = {_TAKEN_FOR_ZERO}",
            code=f"""has_zero_optimizer_state = self.zero_optimization() or isinstance(self.optimizer, BF16_Optimizer)
if (load_optimizer_states and self.optimizer is not None and self.bfloat16_enabled()
        and not has_zero_optimizer_state and not self.has_moe_layers):
    from {__name__} import takes
    has_zero_optimizer_state = not takes(self.optimizer, checkpoint.get('optimizer'), load_path)""",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7515": "introduced in 0.17.6",
        "https://github.com/deepspeedai/DeepSpeed/pull/7786": "fixed in 0.18.5",
    },
    fixed_in="0.18.5",
    present=(Source(f"{_ENGINE}._configure_checkpointing", "hasattr(self.optimizer, 'dp_process_group')"),),
    fixed=(
        Source(f"{_ENGINE}._save_checkpoint", "zero_optimizer_state = self.zero_optimization()"),
        Source(f"{_ENGINE}._load_checkpoint", "has_zero_optimizer_state = self.zero_optimization()"),
    ),
    config=lambda job: job.stage == 0 and job.may_be("bf16") and job.pipeline is not True,
)

_LEARNING_RATE = 0.1
_MOMENTUM = 0.9
_STEPS = 3


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    from .. import _half as half

    steps = [[lab.models.regression_batch(rank=0, step=step)] for step in range(_STEPS + 1)]
    optimizer = functools.partial(torch.optim.SGD, lr=_LEARNING_RATE, momentum=_MOMENTUM)
    expected = half.train(lab.models.MLP(), torch.bfloat16, steps, optimizer)

    engine = _engine(lab, lab.models.MLP())
    _train(engine, steps[:_STEPS])
    saved = lab.parameters(engine)
    engine.save_checkpoint(str(lab.tmp))
    resumed = _engine(lab, lab.models.MLP())
    loaded, _ = resumed.load_checkpoint(str(lab.tmp))
    assert loaded, "no checkpoint was found"
    difference = lab.reference.largest_difference(lab.parameters(resumed), saved)
    assert difference.absolute == 0.0, f"loaded weights: {difference}"
    _train(resumed, steps[_STEPS:])

    # the last step's update, computed at the checkpoint's weights, applied to the initial ones
    masters: list[Any] = []
    initial, model = half.train(lab.models.MLP(), torch.bfloat16, [], optimizer), lab.models.MLP()
    model.load_state_dict(saved)
    half.train(model, torch.bfloat16, steps[_STEPS:], optimizer, masters=masters)
    updates = {name: master - saved[name] for name, master in zip(saved, masters)}
    gone_back = {name: (initial[name] + updates[name]).bfloat16() for name in saved}
    return lab.reference.compare(
        lab.parameters(resumed),
        expected,
        {"those of a step from the initial weights": gone_back},
        within=0.01,
        after="one step after resuming",
    )


def _engine(lab: Lab, model: Any) -> Any:
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE, "momentum": _MOMENTUM}},
        "bf16": {"enabled": True},
    }
    return lab.initialize(model, config, model_parameters=model.parameters())


def _train(engine: Any, steps: Any) -> None:
    from .. import _half as half

    for [(inputs, targets)] in steps:
        engine.backward(half.loss(engine, inputs, targets, next(engine.module.parameters())))
        engine.step()
