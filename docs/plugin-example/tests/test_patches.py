"""The patches of this distribution on the installed DeepSpeed."""

import pytest

from dsfix.testing import CHECKS, patch_ids, prove

each_patch = pytest.mark.parametrize("patch_id", patch_ids("dsfix-plugin-example"))


@each_patch
def test_the_bug_is_there_without_the_patch_and_gone_with_it(patch_id):
    prove(patch_id)


@each_patch
@pytest.mark.parametrize("check", CHECKS)
def test_contract(dsfix_contract, patch_id, check):
    dsfix_contract.check(patch_id, check)
