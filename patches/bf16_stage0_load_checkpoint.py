"""bf16 without ZeRO: load_checkpoint fails, no attribute 'dp_process_group' or '_restore_from_bit16_weights'.

Why: in 0.17.6 a bf16 engine without ZeRO has no ZeRO optimizer any more, but load_checkpoint takes it for one, and asks
    it for what only ZeRO's optimizers and BF16_Optimizer have: its process group, or, where the optimizer's state is
    not to be loaded, to restore itself from the model's weights.
How: bf16 alone counts as ZeRO no longer; BF16_Optimizer, which an engine without an optimizer has, does. Where the
    optimizer's state is not to be loaded, its fp32 copies are taken from the checkpoint's weights.
Upstream: https://github.com/deepspeedai/DeepSpeed/issues/7571, brought by
    https://github.com/deepspeedai/DeepSpeed/pull/7515 (0.17.6), fixed by
    https://github.com/deepspeedai/DeepSpeed/pull/7586 (0.18.0).
Retire: when DeepSpeed 0.17.6 is no longer supported here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

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
    self.optimizer.refresh_fp32_params()""",
        ),
    ),
    symptom=rf"in load_checkpoint[\s\S]*{_MESSAGE}",
    upstream=(
        "https://github.com/deepspeedai/DeepSpeed/issues/7571",
        "https://github.com/deepspeedai/DeepSpeed/pull/7515",
        "https://github.com/deepspeedai/DeepSpeed/pull/7586",
    ),
    fixed_in="0.18.0",
    present=(Source(f"{_ENGINE}._configure_checkpointing", "hasattr(self.optimizer, 'dp_process_group')"),),
    fixed=(
        Source(
            f"{_ENGINE}.load_checkpoint",
            "load_zero_checkpoint = load_path is not None and self.zero_optimization()",
        ),
    ),
)


def reproduce(lab: Lab) -> str:
    assert lab.torch  # before the models, which import it without the device
    from dsfix.lab.models import MLP
    from dsfix.lab.reference import largest_difference

    config = {
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "bf16": {"enabled": True},
    }
    models = [MLP(seed=seed) for seed in (0, 1)]
    saving, loading = (lab.initialize(m, config, model_parameters=m.parameters()) for m in models)
    saving.save_checkpoint(str(lab.tmp))
    try:
        path, _ = loading.load_checkpoint(str(lab.tmp))
    except AttributeError as error:
        if re.search(_MESSAGE, str(error)):
            raise BugPresent(f"in load_checkpoint: {error}") from error
        raise
    assert path, "no checkpoint was found"
    difference = largest_difference(lab.parameters(loading), lab.parameters(saving))
    assert difference.absolute == 0.0, f"of the weights loaded {difference}"
    return "load_checkpoint returns, the weights are those that were saved, bit for bit"
