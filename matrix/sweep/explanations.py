"""What every disagreement in the records is, where no patch of the catalogue cures it. Written by hand."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from packaging.specifiers import SpecifierSet

from matrix.sweep.records import Class, Found


class Kind(enum.Enum):
    """What a disagreement is."""

    MEANING = "DeepSpeed's meaning"  # documented, or refused with a sentence
    DIAGNOSIS = "diagnosis"  # a fault that no patch can cure
    OPEN = "open"  # a fault that has no patch yet


@dataclass(frozen=True)
class Explanation:
    """Explains what classes of `releases` show that need one of each of `levels`.

    levels: factor -> levels. phase, what: as in a Difference, any where empty. detail: a regular expression that is
    found in the error. links: documentation, source or issues.
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
        """Whether `shown`, one of the findings of the class, is this."""
        return (
            SpecifierSet(self.releases).contains(release)
            and all(found.minimal.get(name) in levels for name, levels in self.levels.items())
            and self.phase in ("", shown.phase)
            and (not self.what or shown.what in self.what)
            and re.search(self.detail, shown.detail) is not None
        )


def fitting(found: Class, release: str, explanations: Sequence[Explanation]) -> list[Explanation]:
    """Those that explain the class together; none unless each of its findings is explained."""
    of_each = [[one for one in explanations if one.explains(found, shown, release)] for shown in found.shown]
    return [one for one in explanations if any(one in each for each in of_each)] if all(of_each) else []


_SOURCE = "https://github.com/deepspeedai/DeepSpeed/blob/v0.19.8/deepspeed"

EXPLANATIONS: tuple[Explanation, ...] = (
    Explanation(
        "hpz-of-old",
        Kind.DIAGNOSIS,
        "0.12 counts a group's ranks until torch raises a RuntimeError, and torch raises a ValueError by now. No patch "
        "makes hpZ right there: up to 0.13.1 its backward pass runs on old weights. `dsfix check`: "
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
        "`ds_to_universal` reads the two moments of Adam; of an optimizer that has none it ends in a KeyError, and "
        "nothing is written that could be loaded. `dsfix explain`: universal_checkpoint_not_of_adam.",
        levels={
            "optimizer": ("SGD", "client's SGD", "client's Adagrad"),
            "save": ("universal",),
        },
        what=("error",),
        detail=r"KeyError: 'exp_avg'",
        links=(f"{_SOURCE}/checkpoint/ds_to_universal.py",),
    ),
    Explanation(
        "export-of-bf16-optimizer",
        Kind.DIAGNOSIS,
        "`zero_to_fp32` refuses the checkpoints of BF16_Optimizer, which bf16 has with ZeRO-1 and fp32 "
        "accumulation. `dsfix explain`: zero_to_fp32_of_bf16_optimizer.",
        levels={"precision": ("bf16",), "save": ("export",)},
        what=("error",),
        detail=r"bf16_zero_pp_rank_\d+_mp_rank_\d+_optim_states\.pt is not a zero checkpoint",
        links=(f"{_SOURCE}/utils/zero_to_fp32.py", f"{_SOURCE}/runtime/bf16_optimizer.py"),
    ),
    Explanation(
        "zero-to-fp32-copy-weights-only",
        Kind.DIAGNOSIS,
        "The copy of `zero_to_fp32.py` that a checkpoint has reads with `torch.load`'s default, which torch 2.6 turned "
        "to `weights_only=True`. It is run by itself; dsfix changes the installed module, which gives the weights that "
        "it would. `dsfix explain`: zero_to_fp32_copy_weights_only.",
        releases="<0.16.0",
        levels={"save": ("export",)},
        phase="zero_to_fp32.py",
        what=("error",),
        detail=r"Weights only load failed",
        links=("https://github.com/deepspeedai/DeepSpeed/pull/6751",),
    ),
)
