"""Patches that add gradients which DeepSpeed loses keep discarded ones discarded; in doubt, with a warning."""

import pytest


@pytest.mark.parametrize(
    ("patch_id", "stage"), [("zero3_two_losses_one_forward", 3), ("zero2_accumulation_drops_microbatches", 2)]
)
def test_discarded_gradients_are_not_applied(run, applies, patch_id, stage):
    applies(patch_id)
    seen, errors = run("discarded", stage)
    for doubtful in ("perhaps", "looked_at"):
        from_plain, from_last = seen.pop(doubtful)
        assert from_last < 1e-5 < 1e-2 < from_plain, doubtful  # as without the patch
    assert errors.count(f"{patch_id}: between two backward passes") == 1
    assert {name: difference for name, (difference, _) in seen.items() if not difference < 1e-5} == {}
    assert [name for name, (_, from_last) in seen.items() if from_last > 1e-2] == ["of_the_head", "nothing", "clipped"]
