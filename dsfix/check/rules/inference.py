"""Configs of deepspeed.init_inference, of which only the keys are known."""

from __future__ import annotations

from collections.abc import Iterator

from ...rules import Found, Level, Rule
from ..facts import Facts

# the rules that hold for such a config, too
FOR_INFERENCE = (
    *("inference_config", "duplicate_key", "rejected_key", "string_for_a_number", "fractional_integer", "not_finite"),
    *("template", "placeholder_in_text", "shards_not_kept_on_host", "autotp_of_meta_model", "experts_taken_for_ranks"),
)


def _inference(facts: Facts) -> Iterator[Found]:
    if facts.inference:
        yield Found("", "a config of deepspeed.init_inference: its keys were checked, and whether numbers are numbers")


RULES = (
    Rule(
        id="inference_config",
        level=Level.NOTE,
        find=_inference,
        remedy="none needed; if the script passes it to deepspeed.initialize instead, check it with --plain",
        evidence=("the source of 0.12.0 to 0.19.8: DeepSpeedInferenceConfig",),
    ),
)
