"""An unresolved `"enabled": "auto"` for bf16 or fp16: the job silently trains in fp32.

Why: "auto" is a placeholder of transformers and accelerate, which replace it with true or false before they call
    `deepspeed.initialize`. Where neither does (a custom training loop with a config written for them), DeepSpeed
    through 0.17.0 treated the string as true. Since 0.17.1 both sections are models that drop every "auto", so the
    default is used, which is false. The job runs in fp32, with twice the memory and a fraction of the speed.
How: one WARNING on rank 0 when the config is read and the result is fp32. Not an error, because the job runs and fp32
    may be intended; and not a guess, because "auto" meant bf16 through 0.17.0 and means false elsewhere in DeepSpeed.
    There is no warning when the other of the two, or `torch_autocast`, is enabled.
Workaround: Scripts replace "auto" by true or false before `deepspeed.initialize`. You can keep it; there is no warning
    then.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_CONFIG = "deepspeed.runtime.config"

PATCH = Patch(
    title='Unresolved "enabled": "auto" for bf16 or fp16: the job silently trains in fp32',
    severity=Severity.USABILITY,
    affects={"deepspeed": ">=0.17.1"},
    changes=(
        Edit(
            f"{_CONFIG}:DeepSpeedConfig._do_warning_check",
            before="vocabulary_size = self._param_dict.get(VOCABULARY_SIZE, VOCABULARY_SIZE_DEFAULT)",
            code="""if self.global_rank == 0 and not (self.float16_config.enabled or self.bfloat16_config.enabled
                                  or getattr(self, "torch_autocast_enabled", False)):
    for name in ("bf16", "bfloat16", "fp16"):
        section = self._param_dict.get(name)
        if isinstance(section, dict) and section.get("enabled") == "auto":
            logger.warning(f'DeepSpeedConfig: {name}.enabled is "auto", which DeepSpeed takes for false: fp32. '
                           'Set true or false; only transformers and accelerate resolve "auto"')""",
            effect='a warning was logged: "auto" means fp32 here',
            when="self.global_rank == 0"
            " and not (self.float16_config.enabled or self.bfloat16_config.enabled)"
            " and not getattr(self, 'torch_autocast_enabled', False)"
            " and any(each.get('enabled') == 'auto' for each in"
            " map(self._param_dict.get, ('bf16', 'bfloat16', 'fp16')) if isinstance(each, dict))",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/6976": "introduced in 0.17.1",
    },
    present=(Source(_CONFIG, "from .precision_config import get_bfloat16_config, get_float16_config"),),
)


def reproduce(lab: Lab) -> str:
    from .._messages import Messages

    warnings = Messages(logging.WARNING)
    lab.deepspeed.utils.logger.addHandler(warnings)
    seen = {}
    for precision in ("bf16", "fp16"):
        model = lab.models.MLP()
        config = {"optimizer": {"type": "SGD", "params": {"lr": 0.1}}, precision: {"enabled": "auto"}}
        warnings.lines.clear()
        lab.initialize(model, config, model_parameters=model.parameters())
        [dtype] = {str(p.dtype).rpartition(".")[2] for p in model.parameters()}
        count = sum(f"{precision}.enabled" in line for line in warnings.lines)
        seen[precision] = (dtype, count)
    report = ", ".join(f'{name} "auto": {dtype}, {count} warnings' for name, (dtype, count) in seen.items())
    if set(seen.values()) == {("float32", 0)}:
        raise BugPresent(report)
    assert set(seen.values()) == {("float32", 1)} or seen == {"bf16": ("bfloat16", 0), "fp16": ("float16", 0)}, report
    return report
