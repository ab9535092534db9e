"""AutoTP of MPT with the model's own code (trust_remote_code): a shape error in its attention.

Why: `init_inference` with tensor parallelism divides the numbers of heads and the widths that a layer stores by the
    number of ranks, like its weights. Through 0.12.4 it knows neither `kv_n_heads` nor `d_model`, by which MPT's
    attention divides what its fused weight computes.
How: both are divided in a module that has `kv_n_heads`, as in 0.12.5 and later. 0.12.5 divides every module's
    `d_model`; the patch does not change it in other models.
Workaround: Scripts divide `kv_n_heads` and `d_model` of the attention before `init_inference`, or set them after it to
    the model's numbers divided by the ranks. You can keep it. Code that divides the attention's own numbers after it
    must be removed, as with 0.12.5. With names added in the installed file the patch is not applied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_UPDATE = "deepspeed.module_inject.auto_tp:AutoTP.update_mp_params"


def divide_kv_heads(module: Any, ranks: int) -> None:
    """Divide what MPT's attention notes besides its heads of queries, unless a script has done so."""
    from deepspeed.module_inject.tp_shard import get_shard_size

    if not hasattr(module, "kv_n_heads"):
        return
    width, heads, size = (getattr(module, name, 0) for name in ("d_model", "n_heads", "head_dim"))
    if width and width == heads * size:  # of the heads divided already
        return
    took_effect(__name__, "kv_n_heads and d_model were divided across ranks (unpatched: shape error)")
    for name in ("kv_n_heads", "d_model"):
        if hasattr(module, name):
            setattr(module, name, get_shard_size(getattr(module, name), ranks))


PATCH = Patch(
    title="AutoTP of MPT (trust_remote_code): shape error; kv_n_heads and d_model are not divided across ranks",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.12.0,<0.12.5"},
    changes=(
        Edit(
            _UPDATE,
            before='setattr(child, "replaced", True)',
            code="divide_kv_heads(child, self.mp_size)",
            uses=(divide_kv_heads,),
        ),
    ),
    symptom=r"self\.kv_n_heads[^\n]*\n[\s\S]{0,500}split_with_sizes expects split_sizes to sum exactly",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/4774": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/4787": "fixed in 0.12.5",
    },
    fixed_in="0.12.5",
    fixed=(Source(_UPDATE, '"kv_n_heads"'),),
    ranks=2,
)


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    _ = lab.torch
    from . import _autotp as autotp

    right = autotp.outputs(autotp.noting_mpt())
    engine = autotp.shard(lab, autotp.noting_mpt())
    try:
        seen = autotp.outputs(engine)
    except RuntimeError as error:
        if "split_with_sizes expects split_sizes to sum exactly" in str(error):
            raise BugPresent(str(error)) from error
        raise
    return autotp.compare(seen, right)
