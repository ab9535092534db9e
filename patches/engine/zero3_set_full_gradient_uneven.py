"""ZeRO-3: `safe_set_full_grad` fails for a parameter whose size the ranks do not divide.

Why: each rank cuts its part out of the full gradient. Parts are equally long, so if the ranks do not divide the number
    of elements, the last ones extend beyond its end: "start (1) + length (1) exceeds dimension size (1)" there.
    The others go on, and wait in the next collective.
How: on these ranks the gradient is padded with zeros. Other gradients are cut as before.
Workaround: Scripts set each rank's part with `safe_set_local_grad` instead. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_SET = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3.set_fp32_grad_for_param"
_CUT = "value_partition = value.flatten().narrow(0, fp32_grad.numel() * my_rank, fp32_grad.numel())"
# MiCS from 0.19.3 on numbers all ranks, and not those of a shard group: the part of these would be zeros
_BEYOND = "my_rank < self.partition_count and fp32_grad.numel() * (my_rank + 1) > value.numel() == param.ds_numel"

PATCH = Patch(
    title="ZeRO-3: safe_set_full_grad fails for a parameter whose size the ranks do not divide",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.15.3"},
    changes=(
        Edit(
            _SET,
            before=_CUT,
            code=f"""
if {_BEYOND}:
    value = torch.nn.functional.pad(value.flatten(), (0, fp32_grad.numel() * (my_rank + 1) - value.numel()))
""",
            effect="the gradient of a parameter whose size the ranks do not divide was set (unpatched: RuntimeError)",
            when=_BEYOND,
        ),
    ),
    symptom=r"in set_fp32_grad_for_param\n[\s\S]{0,300}RuntimeError: start \(\d+\) \+ length \(\d+\) exceeds dimension",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/6590": "introduced in 0.15.3",
    },
    present=(Source(_SET, _CUT),),
    ranks=2,
    config=lambda job: job.stage == 3,
)


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    _ = lab.torch
    from ._uneven import doubled

    utils = lab.deepspeed.utils
    if not hasattr(utils, "safe_set_full_grad"):
        raise CannotTell(f"deepspeed {lab.deepspeed.__version__} has no safe_set_full_grad")

    def double(parameters: list[Any]) -> None:
        for parameter in parameters:
            utils.safe_set_full_grad(parameter, 2 * utils.safe_get_full_grad(parameter))

    return doubled(lab, double)
