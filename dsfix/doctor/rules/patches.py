"""Rules about dsfix's own patches: which known bugs the installed DeepSpeed has."""

from __future__ import annotations

from collections.abc import Iterator

from ...catalogue import registry
from ...outcome import Outcome
from ...patch import Severity
from ...rules import Found, Level, Rule
from ...settings import Settings
from ..facts import EnvironmentFacts

_REMEDY = (
    "put `import dsfix` on the first line of the script, or run `python -m dsfix enable`; `python -m dsfix list` names "
    "the bugs"
)


def _applying(facts: EnvironmentFacts, wrong_results: bool) -> Iterator[Found]:
    catalogue = registry.catalogue()
    number = sum(
        verdict.outcome is Outcome.PENDING
        and (catalogue[patch_id].patch.severity is Severity.WRONG_RESULT) is wrong_results
        for patch_id, verdict in facts.verdicts.items()
    )
    if number and facts.deepspeed_usable and not facts.enabled:
        kind = "silently wrong results" if wrong_results else "crashes, hangs and others"
        yield Found("deepspeed", f"this DeepSpeed has {number} known bug{'s' * (number > 1)} that dsfix fixes ({kind})")


def _wrong_results(facts: EnvironmentFacts) -> Iterator[Found]:
    return _applying(facts, True)


def _others(facts: EnvironmentFacts) -> Iterator[Found]:
    return _applying(facts, False)


def _trouble(facts: EnvironmentFacts) -> Iterator[Found]:
    if facts.deepspeed_usable:
        for patch_id, verdict in facts.verdicts.items():
            if verdict.outcome.trouble:
                yield Found("dsfix", f"patch {patch_id}: {verdict.outcome.value}: {verdict.reason}")


def _off(facts: EnvironmentFacts) -> Iterator[Found]:
    if Settings.read(facts.variables).disable:
        yield Found("DSFIX_DISABLE", "DSFIX_DISABLE is set: no patch is applied")


RULES = (
    Rule(
        id="wrong_results_curable",
        level=Level.WARNING,
        remedy=_REMEDY,
        find=_wrong_results,
    ),
    Rule(
        id="patch_in_trouble",
        level=Level.WARNING,
        remedy="run `python -m dsfix show ID` for details",
        find=_trouble,
    ),
    Rule(
        id="patches_switched_off",
        level=Level.WARNING,
        remedy="unset DSFIX_DISABLE",
        find=_off,
    ),
    Rule(
        id="bugs_curable",
        level=Level.NOTE,
        remedy=_REMEDY,
        find=_others,
    ),
)
