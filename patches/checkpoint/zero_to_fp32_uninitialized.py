"""`zero_to_fp32` of DeepSpeed 0.16.0 writes uninitialized memory instead of the weights.

Why: to find out how to split the weights into files, `convert_zero_checkpoint_to_fp32_state_dict` has `to_torch_tensor`
    put empty tensors into a state_dict. In 0.16.0 that is the same state_dict that is then written: the files have all
    names and shapes, but whatever was in memory: zeros, or remains of other tensors. Nothing fails.
    `get_fp32_state_dict_from_zero_checkpoint` and `max_shard_size=None` take another path, and are right.
How: `to_torch_tensor` works on a copy of the state_dict. The copy of `zero_to_fp32.py` in the checkpoint's directory is
    patched under `python -m dsfix run` if it is the installed release's; `python -m deepspeed.utils.zero_to_fp32` runs
    the installed one.
Changes: the files contain the weights. Files written without the patch are useless; the checkpoint is intact: convert
    it again.
Workaround: Scripts pass `max_shard_size=None`, or use `get_fp32_state_dict_from_zero_checkpoint` and torch.save.
    You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_CONVERT = "deepspeed.utils.zero_to_fp32:to_torch_tensor"

PATCH = Patch(
    title="zero_to_fp32 writes uninitialized memory instead of the weights",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.16.0,<0.16.1"},
    changes=(
        Edit(
            _CONVERT,
            before="converted_tensors = {}",
            code="state_dict = state_dict.copy()",
            effect="the weights were written (unpatched: uninitialized memory)",
            when="return_empty_tensor",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/6791": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/6658": "introduced in 0.16.0",
        "https://github.com/deepspeedai/DeepSpeed/pull/6792": "fixed in 0.16.1",
    },
    fixed_in="0.16.1",
    present=(Source(_CONVERT, "state_dict[name] = torch.empty(tensor.shape, dtype=tensor.dtype)"),),
    fixed=(Source(_CONVERT, "torch_state_dict[name] = torch.empty(tensor.shape, dtype=tensor.dtype)"),),
)


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    from ._checkpoints import train, written_by_zero_to_fp32

    worst = 0.0
    for stage in (2, 3):
        model = lab.models.MLP()
        config = {
            "train_micro_batch_size_per_gpu": 4,
            "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
            "zero_optimization": {"stage": stage},
        }
        engine = lab.initialize(model, config, model_parameters=model.parameters())
        train(lab, engine, [lab.models.regression_batch(rank=0, step=0)])
        root = lab.tmp / f"zero{stage}"
        engine.save_checkpoint(str(root), tag="saved")
        weights = written_by_zero_to_fp32(torch, root)
        if any(bool(weight.isnan().any()) for weight in weights.values()):
            raise BugPresent(f"uninitialized memory was written for a ZeRO-{stage} checkpoint")
        difference = lab.reference.largest_difference(weights, lab.parameters(engine))
        assert difference.relative < 1e-6, f"ZeRO-{stage}: {difference}"
        worst = max(worst, difference.relative)
    return f"the fp32 weights of ZeRO-2 and ZeRO-3 checkpoints match the models' within {worst:.1e}"
