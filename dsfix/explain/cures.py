"""What a patch can do about a fault: in this environment, and for the versions that a log names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .. import rules
from ..engine import registry, versions
from ..engine import verdict as judge
from ..engine.outcome import Outcome
from ..engine.settings import Settings

_USE = "put `import dsfix` on the first line of the script"


@dataclass(frozen=True)
class Cure:
    """`named`: the versions in the log that the patch depends on; `in_log`: whether they have the bug."""

    id: str
    verdict: judge.Verdict
    named: Mapping[str, str]
    in_log: bool | None

    def sentence(self) -> str:
        parts = [self._here(), *([] if self.in_log is None else [self._in_log()])]
        return f"{self.id} {'; '.join(parts)}"

    def _here(self) -> str:
        outcome, reason = self.verdict.outcome, self.verdict.reason
        if outcome is Outcome.PENDING:
            return f"applies here ({reason.partition(': ')[0]}): {_USE}"
        if versions.installed("deepspeed") is None:
            unnamed = f"is for these releases: {_USE}; " if self.in_log is None else ""
            return f"{unnamed}cannot be judged here: DeepSpeed is not installed"
        return f"is {outcome.value} here: {reason}"

    def _in_log(self) -> str:
        named = ", ".join(f"{name} {version}" for name, version in self.named.items())
        if self.in_log:
            return f"the log's {named} has the bug" + (
                "" if self.verdict.outcome is Outcome.PENDING else f", and the patch is for it: there, {_USE}"
            )
        return f"the log's {named} is not among the releases that the patch is for"

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "outcome": self.verdict.outcome.value,
            "reason": self.verdict.reason,
            "for_the_versions_in_the_log": self.in_log,
        }


def cures(patch_ids: Iterable[str], in_log: Mapping[str, str]) -> list[Cure]:
    """Of these patches; where one is of use, here or there, those of no use are left out."""
    settings, catalogue = Settings.read(), registry.catalogue()
    found = []
    for patch_id in sorted(patch_ids):
        affects = catalogue[patch_id].patch.affects
        named = {name: version for name, version in in_log.items() if name in affects}
        fits = rules.fits({name: affects[name] for name in named}, named) if "deepspeed" in named else None
        found.append(Cure(patch_id, judge.decide(catalogue[patch_id], settings), named, fits))
    useful = [cure for cure in found if cure.in_log or cure.verdict.outcome is not Outcome.NOT_AFFECTED]
    return useful or found
