"""ZeRO-3: load_checkpoint(load_module_only=True) silently loads no weights.

Why: under ZeRO-3 the weights of a checkpoint are in the optimizer's files, in parts. Since 0.13.0 `load_module_only`
    does not read these files, and the file with the module's state has only frozen weights: the engine keeps the
    weights that the script gave it, and training continues from there. Through 0.12.6 the optimizer's files were
    loaded.
How: a warning on rank 0 says so, and how to load the weights: with `load_optimizer_states=False` they are joined from
    the optimizer's files, as zero_to_fp32.py does. This is not done automatically: it takes host memory for the whole
    model on each rank, and would stop jobs that lack one of the files or get their weights elsewhere. Universal
    checkpoints and `custom_load_fn`, which load weights in other ways, cause no warning.
Workaround: Scripts load with `load_optimizer_states=False` instead, which causes no warning. You can keep it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_LOAD = "deepspeed.runtime.engine:DeepSpeedEngine.load_checkpoint"


def warn(engine: Any, load_dir: str) -> None:
    """Say on rank 0 that no trained weights have been loaded."""
    if engine.global_rank == 0 and engine.zero_optimization_partition_weights():
        from deepspeed.utils import logger

        took_effect(__name__, "a warning was logged: no weights were loaded")
        logger.warning(
            f"load_module_only under ZeRO-3 has loaded no weights (but frozen ones) from {load_dir}: they are in the "
            "optimizer's files. "
            "Pass load_optimizer_states=False, load_lr_scheduler_states=False to join them from there; "
            "each rank then needs host memory for the whole model"
        )


PATCH = Patch(
    title="ZeRO-3: load_checkpoint(load_module_only=True) silently loads no weights",
    severity=Severity.USABILITY,
    affects={"deepspeed": ">=0.13.0"},
    changes=(
        Edit(
            _LOAD,
            before="if not success:\n    self.optimizer._restore_from_bit16_weights()",
            code="""
if (load_module_only and load_optimizer_states and not success and custom_load_fn is None
        and not self.load_universal_checkpoint()):
    warn(self, load_dir)
""",
            uses=(warn,),
        ),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/4141": "introduced in 0.13.0"},
    present=(Source(_LOAD, "success = False"),),
)

_RATE = 0.1


def reproduce(lab: Lab) -> str:
    from .._messages import Messages

    warnings = Messages(logging.WARNING)
    lab.deepspeed.utils.logger.addHandler(warnings)
    directory = str(lab.tmp / "checkpoint")
    saved = _engine(lab, seed=0)
    for step in range(2):
        inputs, targets = (tensor.to(lab.device) for tensor in lab.models.regression_batch(rank=0, step=step))
        saved.backward(lab.torch.nn.functional.mse_loss(saved(inputs), targets))
        saved.step()
    saved.save_checkpoint(directory)
    weights = lab.parameters(saved)

    by_module, joined = _engine(lab, seed=1), _engine(lab, seed=1)
    own = lab.parameters(by_module)
    warnings.lines.clear()
    joined.load_checkpoint(directory, load_optimizer_states=False, load_lr_scheduler_states=False)
    assert lab.reference.largest_difference(lab.parameters(joined), weights).absolute == 0.0
    assert not any("load_module_only" in line for line in warnings.lines), warnings.lines
    by_module.load_checkpoint(directory, load_module_only=True)
    loaded = lab.parameters(by_module)
    if lab.reference.largest_difference(loaded, weights).absolute == 0.0:
        return "load_module_only has loaded the weights"
    assert lab.reference.largest_difference(loaded, own).absolute == 0.0
    said = sum("has loaded no weights" in line for line in warnings.lines)
    if not said:
        raise BugPresent("load_module_only has loaded no weights, without a warning")
    assert said == 1, warnings.lines
    return (
        "load_module_only has loaded no weights, and one warning says so; without the optimizer's states it loads them"
    )


def _engine(lab: Lab, seed: int) -> Any:
    model = lab.models.MLP(seed=seed)
    config = {"optimizer": {"type": "SGD", "params": {"lr": _RATE}}, "zero_optimization": {"stage": 3}}
    return lab.initialize(model, config, model_parameters=model.parameters())
