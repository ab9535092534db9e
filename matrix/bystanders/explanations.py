"""What is worse, or not what plain PyTorch computes, for a reason that somebody has found. By hand."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from packaging.specifiers import SpecifierSet

from bystanders.records import Found
from bystanders.space import Job


@dataclass(frozen=True)
class Explanation:
    """scenarios, states, levels (factor -> those it needs) and releases say what it is for; all have to hold."""

    id: str
    text: str
    scenarios: Collection[str]
    states: Collection[str] = ("other",)
    levels: Mapping[str, Collection[str]] = field(default_factory=dict)
    releases: str = ""

    def fits(self, job: Job, release: str, found: Found) -> bool:
        return (
            job.scenario.name in self.scenarios
            and found.state in self.states
            and all(job.setting[factor] in levels for factor, levels in self.levels.items())
            and SpecifierSet(self.releases).contains(release)
        )


EXPLANATIONS: tuple[Explanation, ...] = (
    Explanation(
        "several-backwards",
        "ZeRO-1 and 2 lose gradients, or count them twice, where engine.backward() is called several times before a "
        "step. zero12_several_backwards_drop and, with offload, zero12_offload_several_backwards_drop cure it; they "
        "are off unless DSFIX_ONLY names them, for they cannot see what module.zero_grad() discards.",
        ("cached_gradients", "forwards_first", "loss_twice", "several_backwards"),
        levels={"stage": ("1", "2")},
    ),
    Explanation(
        "gradients-of-scripts",
        "BF16_Optimizer steps with fp32 gradients of its own: what a script makes of `.grad` before a step is lost.",
        ("clipped_by_torch", "discarded_in_place", "rows_masked"),
        levels={"precision": ("bf16, fp32 accumulation",)},
    ),
)


def of(job: Job, release: str, found: Found) -> list[Explanation]:
    return [each for each in EXPLANATIONS if each.fits(job, release, found)]
