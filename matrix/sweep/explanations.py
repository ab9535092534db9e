"""What every disagreement in the records is, where no patch of the catalogue cures it. Written by hand."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from packaging.specifiers import SpecifierSet

from sweep.records import Class


class Kind(enum.Enum):
    """What a disagreement is."""

    MEANING = "DeepSpeed's meaning"  # documented, or refused with a sentence
    DIAGNOSIS = "diagnosis"  # a fault that no patch can cure
    OPEN = "open"  # a fault that has no patch yet


@dataclass(frozen=True)
class Explanation:
    """Explains the classes of `releases` that need one of each of `levels` and show nothing but what is said here.

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

    def explains(self, found: Class, release: str) -> bool:
        return (
            SpecifierSet(self.releases).contains(release)
            and all(found.minimal.get(name) in levels for name, levels in self.levels.items())
            and all(
                self.phase in ("", each.phase)
                and (not self.what or each.what in self.what)
                and re.search(self.detail, each.detail) is not None
                for each in found.shown
            )
        )


_RUNTIME = "https://github.com/deepspeedai/DeepSpeed/blob/v0.19.8/deepspeed/runtime"

EXPLANATIONS: tuple[Explanation, ...] = (
    Explanation(
        "step-before-training",
        Kind.OPEN,
        "Half precision without ZeRO: `initialize_optimizer_states` makes a step with gradients of zero, to allocate "
        "the optimizer's state. Weight decay has then moved the weights once, and Adam counts one step more.",
        levels={"precision": ("fp16", "bf16")},
        what=("initial parameters", "initial state step", "initial state sum"),
        links=(f"{_RUNTIME}/fp16/unfused_optimizer.py", f"{_RUNTIME}/fp16/fused_optimizer.py"),
    ),
    Explanation(
        "second-backward-released",
        Kind.OPEN,
        "ZeRO-3, two backward passes over one forward pass: the first one releases the parameters, and the second does "
        "not gather them again, for a module's gathering is counted in the forward pass. It ends in an error.",
        levels={"stage": ("3",), "backwards": ("two",)},
        what=("error",),
        detail=r"size of tensor a \(0\)|weight of shape \[0\]",
        links=(f"{_RUNTIME}/zero/parameter_offload.py",),
    ),
    Explanation(
        "adagrad-state",
        Kind.OPEN,
        "torch.optim.Adagrad makes its state when it is built, by parameter. Half precision and ZeRO put other tensors "
        "into its groups, or build a second Adagrad of one group: `save_checkpoint` then ends in a KeyError, a step "
        "with several groups in an IndexError. Not understood yet: with bf16 and ZeRO-1 single elements of the "
        "parameters differ after the first step.",
        levels={"optimizer": ("client's Adagrad",)},
        phase="training",
        detail=r"^$|KeyError: \d|IndexError",
        links=(f"{_RUNTIME}/zero/stage_1_and_2.py", f"{_RUNTIME}/fp16/unfused_optimizer.py"),
    ),
    Explanation(
        "universal-of-adam",
        Kind.DIAGNOSIS,
        "`ds_to_universal` converts the state of Adam and its like; of another optimizer it ends in a KeyError.",
        levels={"save": ("universal",)},
        what=("error",),
        detail=r"KeyError: 'exp_avg'",
        links=("https://github.com/deepspeedai/DeepSpeed/blob/v0.19.8/deepspeed/checkpoint/ds_to_universal.py",),
    ),
    Explanation(
        "universal-frozen",
        Kind.OPEN,
        "A universal checkpoint of ZeRO-3 has no frozen parameters: after the load they are what the script has built.",
        levels={"stage": ("3",), "trained": ("part", "LoRA"), "save": ("universal",)},
        phase="universal",
        links=("https://github.com/deepspeedai/DeepSpeed/blob/v0.19.8/deepspeed/checkpoint/ds_to_universal.py",),
    ),
    Explanation(
        "export-frozen-zero1",
        Kind.OPEN,
        "`zero_to_fp32` leaves out the frozen parameters of ZeRO-1, for `save_checkpoint` writes them with ZeRO-2 and "
        "3 only.",
        levels={"stage": ("1",), "trained": ("part", "LoRA"), "save": ("export",)},
        phase="zero_to_fp32",
        what=("parameters",),
        links=(f"{_RUNTIME}/engine.py",),
    ),
    Explanation(
        "hpz-after-load",
        Kind.OPEN,
        "ZeRO++ hpZ: `load_checkpoint` drops the second copies of the trained parameters only. A frozen one is "
        "gathered from its old copy: the model computes with the frozen weights from before the load.",
        levels={"partitioning": ("hpZ",), "trained": ("part", "LoRA"), "save": ("resume",)},
        phase="resume",
        links=(f"{_RUNTIME}/zero/stage3.py",),
    ),
)
