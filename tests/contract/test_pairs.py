"""Patches that change the same function are compatible: every subset of a pair fixes its bugs.

The engine combines the edits of one function in the order of their ids, and the source proof compiles all of them on
every release. Here the pair's own reproductions are run.
"""

import itertools

import pytest

from dsfix.catalogue import registry
from dsfix.engine.source import split_target
from dsfix.lab import reproduction
from dsfix.patch import Severity
from matrix import environments, table
from matrix.cells import TIMEOUT, Cells
from tests.contract import choice

CATALOGUE = registry.catalogue()


def _functions(entry):
    return {(change.module, split_target(change.qualname)[0]) for change in entry.patch.changes}


def _newest_of_both(one, other):
    try:
        releases = table.load().run_in(environments.current(table.load()).name)
    except environments.Unavailable:
        return None
    common = [
        release.deepspeed
        for release in releases
        if all(choice.applies(entry, release.deepspeed) for entry in (one, other))
    ]
    return common[-1] if common else None


PAIRS = {
    (one.id, other.id): release
    for one, other in itertools.combinations(CATALOGUE.values(), 2)
    if _functions(one) & _functions(other) and (release := _newest_of_both(one, other)) is not None
}


@pytest.fixture(scope="session")
def cells():
    with Cells() as each:
        yield each


@pytest.mark.parametrize("subset", ["first", "second", "both"])
@pytest.mark.parametrize(("pair", "release"), PAIRS.items(), ids=["+".join(pair) for pair in PAIRS])
def test_each_subset_fixes_its_bugs(cells, monkeypatch, pair, release, subset):
    ids = {"first": pair[:1], "second": pair[1:], "both": pair}[subset]
    others = [each.id for each in choice.applying(release, CATALOGUE) if each.patch.default and each.id not in pair]
    monkeypatch.setenv("DSFIX_ONLY", ",".join([*ids, *others]))
    for patch_id in ids:
        preloaded = cells.preloaded_for(CATALOGUE[patch_id])
        path = environments.installed(release)
        options = {} if preloaded is None else {"rank_command": preloaded.command("dsfix.lab.reproduction")}
        seen = reproduction.run(patch_id, True, TIMEOUT, path, **options)
        # a warning of what the other patch fixes
        idle = subset == "both" and CATALOGUE[patch_id].patch.severity is Severity.USABILITY
        assert seen.in_force or (idle and seen.patch == "not-reached"), f"{patch_id} on {release} is {seen.patch}"
        # without the other patch its bug may occur first, as an error of this reproduction
        wanted = ("no-bug",) if subset == "both" else ("no-bug", "error")
        assert seen.outcome in wanted, f"{patch_id} on {release}: {seen.detail}"
