"""`zero_to_fp32` writes integer and boolean buffers as float32.

Why: buffers are saved in the dtype that they have in the model. When a checkpoint is converted, `parse_model_states`
    casts all of them to float32. The cast is meant for half precision, but changes int64 ids and counters, boolean
    masks and complex numbers, too. float32 holds integers up to 2**24; complex numbers lose their imaginary part.
    Nothing fails. A strict `load_state_dict` of the model casts back what is left; what reads the file itself, or loads
    it with `assign=True`, gets another dtype.
How: only floating-point buffers are cast. Checkpoints are written as before. The copy of `zero_to_fp32.py` in the
    checkpoint's directory is patched under `python -m dsfix run` if it is the installed release's. 0.19.7 casts once
    more when it writes files: zero_to_fp32_integer_buffers_in_0_19_7.
Changes: converted checkpoints have such buffers in their own dtype, with their values. Checkpoints are correct and can
    be converted again.
Workaround: Scripts take the buffers from "module" of the checkpoint's `mp_rank_00_model_states.pt`. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_PARSE = "deepspeed.utils.zero_to_fp32:parse_model_states"
_CAST = "{k: v.float() for k, v in state_dict['module'].items() if k in buffer_names}"

PATCH = Patch(
    title="zero_to_fp32 writes integer and boolean buffers as float32: values above 2**24 change",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.19.8"},
    changes=(
        Edit(
            _PARSE,
            replace=_CAST,
            code="{k: v.float() if v.is_floating_point() else v "
            "for k, v in state_dict['module'].items() if k in buffer_names}",
            effect="integer buffers kept their dtype (unpatched: float32)",
            when="any(k in buffer_names and not v.is_floating_point() for k, v in state_dict['module'].items())",
        ),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/8515": "fixed in 0.19.8"},
    fixed_in="0.19.8",
    present=(Source(_PARSE, f"buffers = {_CAST}"),),
)


def reproduce(lab: Lab) -> str:
    from ._checkpoints import NOT_IN_FLOAT32, load_whole_files, train

    load_whole_files()
    torch = lab.torch
    buffers = {
        "count": torch.tensor([NOT_IN_FLOAT32, 3]),
        "mask": torch.tensor([True, False]),
        "wave": torch.tensor([1 + 2j]),
        "scale": torch.tensor([0.5]),
    }
    for stage in (2, 3):
        model = lab.models.MLP()
        for name, value in buffers.items():
            model.register_buffer(name, value.clone())
        config = {
            "train_micro_batch_size_per_gpu": 4,
            "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
            "zero_optimization": {"stage": stage},
        }
        engine = lab.initialize(model, config, model_parameters=model.parameters())
        train(lab, engine, [lab.models.regression_batch(rank=0, step=0)])
        engine.save_checkpoint(str(lab.tmp / str(stage)), tag="saved")
        from deepspeed.utils.zero_to_fp32 import (
            get_fp32_state_dict_from_zero_checkpoint,
        )

        found = dict(get_fp32_state_dict_from_zero_checkpoint(str(lab.tmp / str(stage)), tag="saved"))
        if all(found[name].dtype == torch.float32 for name in buffers):
            raise BugPresent(
                f"a ZeRO-{stage} checkpoint's int64, bool and complex64 buffers are float32, and "
                f"{NOT_IN_FLOAT32} is {int(found['count'][0])}"
            )
        for name, value in buffers.items():
            assert found[name].dtype == value.dtype, f"{name} is {found[name].dtype}"
            assert torch.equal(found[name], value), f"{name} is {found[name]}"
        weights = {name: value for name, value in found.items() if name not in buffers}
        difference = lab.reference.largest_difference(weights, lab.parameters(engine))
        assert difference.relative < 1e-6, f"ZeRO-{stage}: {difference}"
    return "int64, bool and complex64 buffers of ZeRO-2 and ZeRO-3 checkpoints keep dtype and values"
