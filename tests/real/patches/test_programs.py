"""What patches do beyond their reproductions."""

import pytest


@pytest.mark.parametrize(
    ("patch_id", "stage"), [("zero3_two_losses_one_forward", 3), ("zero2_accumulation_drops_microbatches", 2)]
)
def test_discarded_gradients_are_not_applied(run, applies, patch_id, stage):
    """By patches that add gradients which DeepSpeed loses; in doubt, with a warning."""
    applies(patch_id)
    seen, errors = run("discarded", stage)
    for doubtful in ("perhaps", "looked_at"):
        from_plain, from_last = seen.pop(doubtful)
        assert from_last < 1e-5 < 1e-2 < from_plain, doubtful  # as without the patch
    assert errors.count(f"{patch_id}: between two backward passes") == 1
    assert {name: difference for name, (difference, _) in seen.items() if not difference < 1e-5} == {}
    assert [name for name, (_, from_last) in seen.items() if from_last > 1e-2] == ["of_the_head", "nothing", "clipped"]


def test_rates_and_parameters_are_those_of_plain_pytorch(run):
    """empty_group_scheduler with each kind of scheduler, in each stage, and from checkpoints."""
    seen, _ = run("empty_groups")
    assert len(seen) == 11
    for name, case in seen.items():
        assert case["rates"] == [pytest.approx(rates, rel=1e-12) for rates in case["expected"]], name
        assert len(case["rates"]) >= 2
        assert case["rates"][0] != case["rates"][-1]
        if "resumed" not in name:
            assert case["difference"] < 1e-5, name
            assert case["last"] == pytest.approx(case["expected last"], rel=1e-12), name
            assert case["equal"]


@pytest.mark.parametrize(("stage", "section"), [(3, "bf16"), (3, "fp16"), (1, "bf16")])
def test_routers_keep_the_biases_of_the_checkpoint(run, stage, section):
    """half_routing_bias with DeepSeek-V3, loaded by transformers."""
    seen, _ = run("routing_bias", stage, section)
    assert seen["partitioned"] is (stage == 3)
    assert seen["dtypes"] == ["torch.float32"]
    assert seen["distinct"] == [seen["experts"]] * 2
    assert seen["losses"][1] < seen["losses"][0]


def test_without_half_routing_bias_they_are_rounded(run):
    seen, _ = run("routing_bias", 3, "bf16", DSFIX_SKIP="half_routing_bias")
    assert seen["dtypes"] == ["torch.bfloat16"]
    assert seen["distinct"] == [1, 1]
