"""zero3_checkpoint_recompute beyond its reproduction: dtypes, zero.Init, accumulation, ranks."""

import re

import pytest

from dsfix.catalogue.registry import catalogue

PATCH_ID = "zero3_checkpoint_recompute"
CASES = ["bf16", "bf16, zero.Init", "fp32", "fp32, zero.Init"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_lora_trains_bit_equal_to_the_run_without_checkpointing(run, applies, ranks):
    applies(PATCH_ID)
    seen, _ = run("recompute", ranks=ranks)
    for cases in seen:
        assert sorted(cases) == CASES
        for case in cases.values():
            assert case["differ"] == []
            assert case["no gradient"] < case["gradients"]
    # the ranks have batches of their own
    assert len({tuple(cases["fp32"]["losses"]) for cases in seen}) == ranks


def test_without_the_patch_it_is_the_checkpoint_error(run, applies):
    applies(PATCH_ID)
    [seen], _ = run("recompute", DSFIX_SKIP=PATCH_ID)
    assert re.search(catalogue()[PATCH_ID].patch.symptom, seen["fp32"]["error"])
