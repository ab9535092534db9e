"""Whether a patch fixes a problem: in this environment, and for the versions that a log names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import rules, survey, versions
from ..catalogue import registry
from ..engine.verdict import Verdict
from ..outcome import Outcome
from ..settings import Settings

_USE = "put `import dsfix` on the first line of the script"


@dataclass(frozen=True)
class PatchFix:
    """named: versions in the log that the patch depends on; in_log: whether they have the bug; None if not named."""

    id: str
    verdict: Verdict
    named: Mapping[str, str]
    in_log: bool | None

    def sentence(self) -> str:
        parts = [self._in_environment(), *([] if self.in_log is None else [self._in_log()])]
        return f"{self.id} {'; '.join(parts)}"

    def _in_environment(self) -> str:
        outcome, reason = self.verdict.outcome, self.verdict.reason
        if outcome is Outcome.PENDING:
            return f"applies here ({reason.partition(': ')[0]}): {_USE}"
        if versions.installed("deepspeed") is None:
            unnamed = f"applies to these releases ({_USE}), but " if self.in_log is None else ""
            return f"{unnamed}was not checked here, because DeepSpeed is not installed"
        return f"is {outcome.value} here: {reason}"

    def _in_log(self) -> str:
        named = ", ".join(f"{name} {version}" for name, version in self.named.items())
        if self.in_log:
            there = "" if self.verdict.outcome is Outcome.PENDING else f"; in that environment, {_USE}"
            return f"{named} in the log has the bug{there}"
        return f"the patch does not apply to {named} in the log"

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "outcome": self.verdict.outcome.value,
            "reason": self.verdict.reason,
            "for_the_versions_in_the_log": self.in_log,
        }


def fixes(patch_ids: Iterable[str], in_log: Sequence[Mapping[str, str]]) -> list[PatchFix]:
    """Returns what these patches do; those that help neither here nor for the log are omitted if a different one helps.

    in_log: the versions that the log names; several if it names several releases, of which one with the bug counts.
    """
    settings, catalogue = Settings.read(), registry.catalogue()
    fixes = []
    for patch_id in sorted(patch_ids):
        affects = catalogue[patch_id].patch.affects
        for versions_of_one in in_log:
            named = {name: version for name, version in versions_of_one.items() if name in affects}
            fits = rules.all_in_range({name: affects[name] for name in named}, named) if "deepspeed" in named else None
            if fits:
                break
        fixes.append(PatchFix(patch_id, survey.verdict_of(catalogue[patch_id], settings), named, fits))
    useful = [fix for fix in fixes if fix.in_log or fix.verdict.outcome is not Outcome.NOT_AFFECTED]
    return useful or fixes
