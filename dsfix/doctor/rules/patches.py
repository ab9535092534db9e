"""Rules about dsfix's own patches: which known bugs the installed DeepSpeed has."""

from __future__ import annotations

from collections.abc import Iterator

from ...catalogue import registry
from ...outcome import Outcome
from ...patch import Severity
from ...rules import Match, note, warning
from ...settings import Settings
from ..facts import EnvironmentFacts

_REMEDY = (
    "put `import dsfix` on the first line of the script, or run `python -m dsfix enable`; `python -m dsfix list` names "
    "the bugs"
)


def _applying(facts: EnvironmentFacts, wrong_results: bool) -> Iterator[Match]:
    catalogue = registry.catalogue()
    number = sum(
        verdict.outcome is Outcome.PENDING
        and (catalogue[patch_id].patch.severity is Severity.WRONG_RESULT) is wrong_results
        for patch_id, verdict in facts.verdicts.items()
    )
    if number and facts.deepspeed_usable and not facts.enabled:
        kind = "silently wrong results" if wrong_results else "crashes, hangs and other bugs"
        yield Match("deepspeed", f"this DeepSpeed has {number} known bug{'s' * (number > 1)} that dsfix fixes ({kind})")


@warning(_REMEDY)
def wrong_results_curable(facts: EnvironmentFacts) -> Iterator[Match]:
    return _applying(facts, True)


@note(_REMEDY)
def bugs_curable(facts: EnvironmentFacts) -> Iterator[Match]:
    return _applying(facts, False)


@warning("run `python -m dsfix show ID` for details")
def patch_in_trouble(facts: EnvironmentFacts) -> Iterator[Match]:
    if facts.deepspeed_usable:
        for patch_id, verdict in facts.verdicts.items():
            if verdict.outcome.trouble:
                yield Match("dsfix", f"patch {patch_id}: {verdict.outcome.value}: {verdict.reason}")


@warning("unset DSFIX_DISABLE")
def patches_switched_off(facts: EnvironmentFacts) -> Iterator[Match]:
    if Settings.read(facts.variables).disable:
        yield Match("DSFIX_DISABLE", "DSFIX_DISABLE is set: no patch is applied")
