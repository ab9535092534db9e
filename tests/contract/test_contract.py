"""Every patch of the catalogue meets the contract, on the newest release that it applies to."""

import pytest

from dsfix.catalogue import registry
from dsfix.testing.contract import checks
from tests.contract import choice

ENTRIES = registry.catalogue()
RELEASES = choice.by_release(ENTRIES)


@pytest.mark.parametrize("patch_id", ENTRIES)
@pytest.mark.parametrize("check", checks.CHECKS, ids=lambda check: check.__name__)
def test_contract(case_of, patch_id, check):
    try:
        check(case_of(ENTRIES[patch_id], choice.newest(ENTRIES[patch_id])))
    except (choice.NoRelease, checks.NotApplicable) as reason:
        pytest.skip(f"{patch_id}: {reason}")


@pytest.mark.parametrize(("release", "entries"), RELEASES.items(), ids=RELEASES)
def test_all_patches_of_a_release_at_once(case_of, release, entries):
    checks.all_at_once([case_of(entry, release) for entry in entries])
