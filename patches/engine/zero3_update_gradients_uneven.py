"""ZeRO-3: `safe_update_full_grad_vectorized` fails for a parameter whose size the ranks do not divide.

Why: each rank cuts its part out of the new gradient. Parts are equally long, so if the ranks do not divide the number of
    elements, the last ones extend beyond its end: "start (1) + length (1) exceeds dimension size (1)" on these ranks.
    The others go on, and wait in the next collective.
How: on these ranks the gradient is padded with zeros. Other gradients are cut as before.
Workaround: Scripts update each rank's part with `safe_get_local_grad` and `safe_set_local_grad` instead. You can keep
    it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_UPDATE = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3.update_fp32_grad_for_param_vectorized"
_PART, _FULL = "fp32_grad_part.numel()", "new_fp32_grad_full"
_CUT = f"value_partition = {_FULL}.flatten().narrow(0, {_PART} * my_rank, {_PART})"
# MiCS from 0.19.3 on numbers all ranks, and not those of a shard group: the part of these would be zeros
_BEYOND = f"my_rank < self.partition_count and {_PART} * (my_rank + 1) > {_FULL}.numel() == param.ds_numel"

PATCH = Patch(
    title="ZeRO-3: safe_update_full_grad_vectorized fails for a parameter whose size the ranks do not divide",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.16.9"},
    changes=(
        Edit(
            _UPDATE,
            before=_CUT,
            code=f"""
if {_BEYOND}:
    {_FULL} = torch.nn.functional.pad({_FULL}.flatten(), (0, {_PART} * (my_rank + 1) - {_FULL}.numel()))
""",
            effect="the gradient of a parameter whose size the ranks do not divide was set (unpatched: RuntimeError)",
            when=_BEYOND,
        ),
    ),
    symptom=r"in update_fp32_grad_for_param_vectorized\n[\s\S]{0,300}RuntimeError: start \(\d+\) \+ length \(\d+\) exceeds",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7046": "introduced in 0.16.9",
    },
    present=(Source(_UPDATE, _CUT),),
    ranks=2,
    config=lambda job: job.stage == 3,
)


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    _ = lab.torch
    from ._uneven import doubled

    update = getattr(lab.deepspeed.utils, "safe_update_full_grad_vectorized", None)
    if update is None:
        raise CannotTell(f"deepspeed {lab.deepspeed.__version__} has no safe_update_full_grad_vectorized")

    def double(parameters: list[Any]) -> None:
        update(parameters, lambda gradient, _: 2 * gradient)

    return doubled(lab, double)
