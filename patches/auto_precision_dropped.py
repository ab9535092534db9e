"""bf16 or fp16 `"enabled": "auto"` that nobody has resolved: the job trains in fp32 and is not told.

Why: "auto" is a word of transformers and accelerate, which put true or false in its place before they call
    `deepspeed.initialize`. Where neither does (a training loop of one's own with a config made for them), DeepSpeed up
    to 0.17.0 took the string for true. Since 0.17.1 the two sections are models that drop every "auto": the default
    counts, which is false. The job runs in fp32, with twice the memory and a fraction of the speed.
How: one warning on rank 0, at WARNING, where the config is read and the outcome is fp32. Neither an error, for the job
    runs and may have been meant so, nor a guess: "auto" was bf16 up to 0.17.0, and is false elsewhere in DeepSpeed.
    Nothing is said where the other one of the two is on, or `torch_autocast`.
Upstream: brought by https://github.com/deepspeedai/DeepSpeed/pull/6976 (0.17.1), not fixed.
Retire: when a release after DeepSpeed 0.19.8 says so itself, and those that do not are no longer supported here.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_CONFIG = "deepspeed.runtime.config"

PATCH = Patch(
    title='bf16 or fp16 "enabled": "auto", unresolved: trains in fp32 without a word',
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
        ),
    ),
    symptom="",
    upstream=("https://github.com/deepspeedai/DeepSpeed/pull/6976",),
    fixed_in=None,
    present=(Source(_CONFIG, "from .precision_config import get_bfloat16_config, get_float16_config"),),
)


def reproduce(lab: Lab) -> str:
    assert lab.deepspeed  # before the next, which import torch without the device
    from deepspeed.utils import logger  # type: ignore[import-not-found,unused-ignore]

    from dsfix.lab.models import MLP

    warnings = _Warnings(logging.WARNING)
    logger.addHandler(warnings)
    seen = {}
    for precision in ("bf16", "fp16"):
        model = MLP()
        config = {"optimizer": {"type": "SGD", "params": {"lr": 0.1}}, precision: {"enabled": "auto"}}
        warnings.lines.clear()
        lab.initialize(model, config, model_parameters=model.parameters())
        [dtype] = {str(p.dtype).rpartition(".")[2] for p in model.parameters()}
        told = sum(f"{precision}.enabled" in line for line in warnings.lines)
        seen[precision] = (dtype, told)
    said = ", ".join(f'{name} "auto": {dtype}, {told} warnings' for name, (dtype, told) in seen.items())
    if set(seen.values()) == {("float32", 0)}:
        raise BugPresent(said)
    assert set(seen.values()) == {("float32", 1)} or seen == {"bf16": ("bfloat16", 0), "fp16": ("float16", 0)}, said
    return said


class _Warnings(logging.Handler):
    """The messages of at least this handler's level."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
