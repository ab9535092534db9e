"""bf16 without ZeRO: load_checkpoint fails, no attribute 'dp_process_group' or '_restore_from_bit16_weights'.

Why: in 0.17.6 a bf16 engine without ZeRO no longer has a ZeRO optimizer, but load_checkpoint treats it as one and uses
    what only ZeRO's optimizers and BF16_Optimizer have: a process group or, if the optimizer's state is not loaded, a
    method that restores the fp32 weights from the model's.
How: bf16 without ZeRO no longer counts as ZeRO; BF16_Optimizer, which an engine without an optimizer has, still does.
    Where the optimizer's state is not loaded, its fp32 copies are taken from the checkpoint's weights, except where
    they already round to them.
Workaround: None in the script; DeepSpeed 0.17.5 or 0.18.0, or ZeRO-1, helps.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

from .._shared import take_weights

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
_MESSAGE = r"'FP16_\w*Optimizer' object has no attribute '(dp_process_group|_restore_from_bit16_weights)'"

PATCH = Patch(
    title="bf16 without ZeRO: load_checkpoint fails, no attribute 'dp_process_group'",
    severity=Severity.CRASH,
    affects={"deepspeed": "==0.17.6"},
    changes=(
        Edit(
            f"{_ENGINE}.load_checkpoint",
            replace="self.zero_optimization() or self.bfloat16_enabled()",
            code="self.zero_optimization() or isinstance(self.optimizer, BF16_Optimizer)",
        ),
        Edit(
            f"{_ENGINE}.load_checkpoint",
            before="if self.zero_nvme_offload_optimizer():\n    ...",
            code="""if (load_path is not None and not load_optimizer_states and self.optimizer is not None
        and self.bfloat16_enabled() and not load_zero_checkpoint):
    take_weights(self.optimizer)""",
            uses=(take_weights,),
            effect="a checkpoint was loaded without ZeRO's files (unpatched: AttributeError)",
            when="load_path is not None and self.bfloat16_enabled() and not load_zero_checkpoint",
        ),
    ),
    symptom=rf"in load_checkpoint[\s\S]*{_MESSAGE}",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/7571": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/7515": "introduced in 0.17.6",
        "https://github.com/deepspeedai/DeepSpeed/pull/7586": "fixed in 0.18.0",
    },
    fixed_in="0.18.0",
    present=(Source(f"{_ENGINE}._configure_checkpointing", "hasattr(self.optimizer, 'dp_process_group')"),),
    fixed=(
        Source(
            f"{_ENGINE}.load_checkpoint",
            "load_zero_checkpoint = load_path is not None and self.zero_optimization()",
        ),
    ),
    config=lambda job: job.stage == 0 and job.may_be("bf16"),
)


def reproduce(lab: Lab) -> str:
    config = {
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "bf16": {"enabled": True},
    }
    models = [lab.models.MLP(seed=seed) for seed in (0, 1)]
    saving, loading = (lab.initialize(m, config, model_parameters=m.parameters()) for m in models)
    saving.save_checkpoint(str(lab.tmp))
    try:
        path, _ = loading.load_checkpoint(str(lab.tmp))
    except AttributeError as error:
        if re.search(_MESSAGE, str(error)):
            raise BugPresent(f"in load_checkpoint: {error}") from error
        raise
    assert path, "no checkpoint was found"
    difference = lab.reference.largest_difference(lab.parameters(loading), lab.parameters(saving))
    assert difference.absolute == 0.0, f"after load_checkpoint {difference}"
    return "load_checkpoint succeeds; the weights are the saved ones bit for bit"
