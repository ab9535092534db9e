"""`zero_to_fp32` of DeepSpeed 0.19.7 casts integer and boolean buffers again when it writes its files.

Why: 0.19.7 lets the user choose the dtype of the files, float32 by default, and casts every tensor to it, buffers of
    integers too. `get_fp32_state_dict_from_zero_checkpoint`, which writes no files, has only the older cast:
    zero_to_fp32_integer_buffers.
How: only floating-point tensors are cast, as in 0.19.8 and later.
Changes: converted checkpoints have such buffers in their own dtype, with their values. Checkpoints are correct and can
    be converted again.
Workaround: Scripts put the buffers from "module" of the checkpoint's `mp_rank_00_model_states.pt` into the files that
    were written. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_CONVERT = "deepspeed.utils.zero_to_fp32:to_torch_tensor"
_FLOATING = "tensor.dtype.is_floating_point"

PATCH = Patch(
    title="zero_to_fp32 of 0.19.7 writes integer and boolean buffers as float32",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.19.7,<0.19.8"},
    changes=(
        Edit(
            _CONVERT,
            replace="torch.empty(tensor.shape, dtype=dtype or tensor.dtype)",
            code=f"torch.empty(tensor.shape, dtype=dtype if dtype and {_FLOATING} else tensor.dtype)",
        ),
        Edit(
            _CONVERT,
            replace="contiguous_tensor.to(dtype=dtype) if dtype else contiguous_tensor",
            code=f"contiguous_tensor.to(dtype=dtype) if dtype and {_FLOATING} else contiguous_tensor",
            effect="integer buffers kept their dtype (unpatched: cast)",
            when=f"dtype and not {_FLOATING} and dtype != tensor.dtype",
        ),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/8515": "fixed in 0.19.8"},
    fixed_in="0.19.8",
    fixed=(Source(_CONVERT, f"target_dtype = dtype if {_FLOATING} else None"),),
)


def reproduce(lab: Lab) -> str:
    from ._checkpoints import NOT_IN_FLOAT32, load_whole_files, train, written_by_zero_to_fp32

    load_whole_files()
    torch = lab.torch
    model = lab.models.MLP()
    model.register_buffer("count", torch.tensor([NOT_IN_FLOAT32, 3]))
    model.register_buffer("mask", torch.tensor([True, False]))
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": 2},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    train(lab, engine, [lab.models.regression_batch(rank=0, step=0)])
    engine.save_checkpoint(str(lab.tmp), tag="saved")
    written = written_by_zero_to_fp32(torch, lab.tmp)
    count, mask = written.pop("count"), written.pop("mask")
    if count.dtype == mask.dtype == torch.float32:
        raise BugPresent(f"int64 and bool buffers are written as float32, and {NOT_IN_FLOAT32} as {int(count[0])}")
    assert torch.equal(count, torch.tensor([NOT_IN_FLOAT32, 3])), count
    assert torch.equal(mask, torch.tensor([True, False])), mask
    difference = lab.reference.largest_difference(written, lab.parameters(engine))
    assert difference.relative < 1e-6, difference
    return "int64 and bool buffers are written with their dtype and values"
