"""ZeRO-1/2 with `elastic_checkpoint` and torch's Adam cannot save: slice() cannot be applied to a 0-dim tensor.

Why: with `"elastic_checkpoint": true` the padding is cut off each tensor of the optimizer's state before it is saved.
    torch's Adam, AdamW and others keep `step` as a 0-dim tensor (since torch 1.12), which cannot be sliced. DeepSpeed's
    own optimizers count in a number and are not affected.
How: a 0-dim tensor has no padding and is saved as it is. Loading the optimizer's state from such a checkpoint is a
    separate bug: since 0.13.2, elastic_checkpoint_torch_adam.
Workaround: Scripts wrap `_get_state_without_padding` to skip 0-dim tensors, edit it in the installed file, leave
    `elastic_checkpoint` out of the config, or use DeepSpeed's own Adam. You can keep it; with an edited file the patch
    is not applied.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.job import Job
    from dsfix.lab import Lab

_LEAN = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer._get_state_without_padding"
_CHECK = "torch.is_tensor(value) and value.dim() > 0"
_MESSAGE = "slice() cannot be applied to a 0-dim tensor"


def _meets(job: Job) -> bool:
    elastic = job.get("zero_optimization", "elastic_checkpoint") is True
    return elastic and job.stage in (1, 2) and job.fused_adam is not True  # FusedAdam and DeepSpeedCPUAdam count


PATCH = Patch(
    title="ZeRO-1/2 + elastic_checkpoint + torch's Adam: saving fails, slice() of a 0-dim tensor",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.12.0,<0.18.2"},
    changes=(
        Edit(
            _LEAN,
            replace="torch.is_tensor(value)",
            code=_CHECK,
            effect="a 0-dim state was saved (unpatched: saving fails)",
            when="torch.is_tensor(value) and value.dim() == 0",
        ),
    ),
    symptom=r"_get_state_without_padding[\s\S]*slice\(\) cannot be applied to a 0-dim tensor",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/7650": "reported",
        "https://github.com/ssbuild/chatglm_finetuning/issues/32": "reported",
        "https://github.com/hiyouga/ChatGLM-Efficient-Tuning/issues/184": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/7659": "fixed in 0.18.2",
    },
    fixed_in="0.18.2",
    fixed=(Source(_LEAN, _CHECK),),
    config=_meets,
)

_STEPS = 2


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    from ._checkpoints import train

    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(_STEPS)]
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
        "zero_optimization": {"stage": 1, "elastic_checkpoint": True},
    }
    model = lab.models.MLP()
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    train(lab, engine, batches)
    try:
        engine.save_checkpoint(str(lab.tmp), tag="saved")
    except IndexError as error:
        passed = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        if _MESSAGE in str(error) and "_get_state_without_padding" in passed:
            raise BugPresent(f"save_checkpoint: {error}") from error
        raise

    [path] = (lab.tmp / "saved").glob("*zero_pp_rank_0_*optim_states.pt")
    saved = torch.load(path, map_location="cpu", weights_only=False)["optimizer_state_dict"]["base_optimizer_state"]
    [here] = engine.optimizer.optimizer.state.values()
    assert saved[0]["step"] == here["step"], saved[0]["step"]
    moments = {key: here[key][: len(saved[0][key])].cpu() for key in ("exp_avg", "exp_avg_sq")}
    difference = lab.reference.largest_difference({key: saved[0][key] for key in moments}, moments)
    assert difference.absolute == 0.0, difference
    numel = sum(parameter.numel() for parameter in model.parameters())
    assert len(saved[0]["exp_avg"]) == numel, f"{len(saved[0]['exp_avg'])} elements of {numel} were saved"
    return f"step {int(saved[0]['step'])} and the moments of {numel} elements are saved unchanged"
