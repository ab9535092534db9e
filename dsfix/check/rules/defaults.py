"""Unset keys whose default differs between releases, or that older releases lack."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from ...rules import Match, note
from ..facts import Facts


@note('set it; "auto" uses max_grad_norm from transformers\' arguments', "#8068", "run: 0.19.2 and 0.19.3")
def gradient_clipping_default(facts: Facts) -> Iterator[Match]:
    new = facts.release >= Version("0.19.3")
    if facts.get("gradient_clipping") is None and not facts.may_only_infer:
        what = f"not set: the default is {1.0 if new else 0.0} here (0.0 through 0.19.2, 1.0 since 0.19.3)"
        yield Match("gradient_clipping", what)


@note("set it to true or false", "#8035", affects={"deepspeed": ">=0.17.1"})
def bf16_overflow_default(facts: Facts) -> Iterator[Match]:
    if facts.on("bf16") and facts.plain and facts.get("bf16", "check_grad_overflow") is None:
        what = "not set: steps with inf or nan gradients are skipped since 0.19.3, and applied through 0.19.2"
        yield Match("bf16.check_grad_overflow", what)


def _has_own_bf16_optimizer(facts: Facts) -> bool:
    """Whether BF16_Optimizer is used for bf16: without ZeRO, or with fp32 accumulation in ZeRO-1."""
    in_fp32 = facts.get("data_types", "grad_accum_dtype") in ("fp32", "float32")
    return facts.stage == 0 or (facts.stage == 1 and in_fp32)


@note(
    "upgrade to DeepSpeed 0.19.3 or later, or stop at the first loss or gradient norm that is not finite",
    "#6976",
    "run: infinite_loss_in_bf16 on 0.13.1 to 0.16.0",
    affects={"deepspeed": "<0.17.1"},
)
def bf16_unchecked_gradients(facts: Facts) -> Iterator[Match]:
    # BF16_Optimizer refuses such a step
    if facts.on("bf16") and facts.plain and facts.stage in (1, 2, 3) and not _has_own_bf16_optimizer(facts):
        what = (
            "steps with inf or nan gradients are applied, and the weights stay nan; later releases can skip such "
            "steps: bf16.check_grad_overflow"
        )
        yield Match("bf16.enabled", what)


@note(
    "use_reentrant=False for gradient checkpointing, or a different release of DeepSpeed",
    "run: a layer that two checkpointed parts use, on 0.16.4 to 0.17.1",
    affects={"deepspeed": ">=0.16.5,<0.17.1"},
)
def bf16_checkpointed_twice(facts: Facts) -> Iterator[Match]:
    if facts.on("bf16") and facts.plain and _has_own_bf16_optimizer(facts):
        what = (
            "if reentrantly checkpointed parts share a layer (applied twice, or tied embeddings), its gradients are "
            "counted more than once"
        )
        yield Match("bf16.enabled", what)
