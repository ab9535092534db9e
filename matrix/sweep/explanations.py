"""Hand-written explanations of the recorded disagreements that no patch fixes."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dsfix.versions import satisfies
from matrix.sweep.records import Class, Found


class Kind(enum.Enum):
    """The kind of a disagreement."""

    MEANING = "DeepSpeed's meaning"  # documented, or refused with a message
    DIAGNOSIS = "diagnosis"  # a bug that no patch can fix
    OPEN = "open"  # a bug without a patch so far


@dataclass(frozen=True)
class Explanation:
    """Explains findings of classes on `releases` whose levels are among `levels` (factor -> levels).

    phase, what: as in a Difference; empty means any. detail: a regular expression searched in the error. links:
    documentation, source or issues.
    """

    id: str
    kind: Kind
    text: str
    releases: str = ""
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    phase: str = ""
    what: tuple[str, ...] = ()
    detail: str = ""
    links: tuple[str, ...] = ()

    def explains(self, found: Class, shown: Found, release: str) -> bool:
        """Whether this explains `shown`, one of the class's findings."""
        return (
            satisfies(self.releases, release)
            and all(found.minimal.get(name) in levels for name, levels in self.levels.items())
            and self.phase in ("", shown.phase)
            and (not self.what or shown.what in self.what)
            and re.search(self.detail, shown.detail) is not None
        )


def fitting(found: Class, release: str, explanations: Sequence[Explanation]) -> list[Explanation]:
    """The explanations that together explain the class; none unless each of its findings is explained."""
    of_each = [[one for one in explanations if one.explains(found, shown, release)] for shown in found.shown]
    return [one for one in explanations if any(one in each for each in of_each)] if all(of_each) else []


_SOURCE = "https://github.com/deepspeedai/DeepSpeed/blob/v0.19.8/deepspeed"

EXPLANATIONS: tuple[Explanation, ...] = (
    Explanation(
        "hpz-of-old",
        Kind.DIAGNOSIS,
        "0.12 counts a group's ranks until torch raises a RuntimeError, but current torch raises a ValueError. No "
        "patch makes hpZ correct there: through 0.13.1 its backward pass runs on stale weights. `dsfix check`: "
        "hpz_backward_on_old_weights; `dsfix explain`: hpz_group_rank.",
        releases="<0.13.0",
        levels={"partitioning": ("hpZ",)},
        what=("error",),
        detail=r"Group rank \d+ is not part of group",
        links=(
            "https://github.com/deepspeedai/DeepSpeed/pull/4862",
            "https://github.com/deepspeedai/DeepSpeed/issues/4851",
        ),
    ),
    Explanation(
        "universal-of-adam",
        Kind.DIAGNOSIS,
        "`ds_to_universal` reads Adam's two moments; with an optimizer that has none it raises a KeyError and writes "
        "nothing that can be loaded. `dsfix explain`: universal_checkpoint_not_of_adam.",
        levels={"optimizer": ("SGD", "client's SGD", "client's Adagrad"), "save": ("universal",)},
        what=("error",),
        detail=r"KeyError: 'exp_avg'",
        links=(f"{_SOURCE}/checkpoint/ds_to_universal.py",),
    ),
    Explanation(
        "several-backward-passes",
        Kind.DIAGNOSIS,
        "Of several backward passes before a step only the last one counts. `zero12_several_backwards_drop` adds them "
        "up, with optimizer offload `zero12_offload_several_backwards_drop`. They are off by default: a script that "
        "wants the earlier passes to be lost cannot be told from one that adds them up.",
        releases=">=0.17.6",
        levels={"stage": ("1", "2"), "backwards": ("two",)},
        phase="training",
        what=("norm", "gradients"),
    ),
    Explanation(
        "export-of-bf16-optimizer",
        Kind.DIAGNOSIS,
        "`zero_to_fp32` refuses checkpoints of BF16_Optimizer, which bf16 uses with ZeRO-1 and fp32 accumulation. "
        "`dsfix explain`: zero_to_fp32_of_bf16_optimizer.",
        levels={"precision": ("bf16",), "save": ("export",)},
        what=("error",),
        detail=r"bf16_zero_pp_rank_\d+_mp_rank_\d+_optim_states\.pt is not a zero checkpoint",
        links=(f"{_SOURCE}/utils/zero_to_fp32.py", f"{_SOURCE}/runtime/bf16_optimizer.py"),
    ),
    Explanation(
        "zero-to-fp32-copy-weights-only",
        Kind.DIAGNOSIS,
        "A checkpoint's copy of `zero_to_fp32.py` uses `torch.load`'s default, which is `weights_only=True` since "
        "torch 2.6. The copy runs on its own; dsfix patches the installed module, which gives the same weights. "
        "`dsfix explain`: zero_to_fp32_copy_weights_only.",
        releases="<0.16.0",
        levels={"save": ("export",)},
        phase="zero_to_fp32.py",
        what=("error",),
        detail=r"Weights only load failed",
        links=("https://github.com/deepspeedai/DeepSpeed/pull/6751",),
    ),
)
