"""half_routing_bias beyond its reproduction: DeepSeek-V3 of transformers, loaded by transformers."""

import pytest


@pytest.mark.parametrize(("stage", "section"), [(3, "bf16"), (3, "fp16"), (1, "bf16")])
def test_routers_keep_the_biases_of_the_checkpoint(run, stage, section):
    seen, _ = run("routing_bias", stage, section)
    assert seen["partitioned"] is (stage == 3)
    assert seen["dtypes"] == ["torch.float32"]
    assert seen["distinct"] == [seen["experts"]] * 2
    assert seen["losses"][1] < seen["losses"][0]


def test_without_the_patch_they_are_rounded(run):
    seen, _ = run("routing_bias", 3, "bf16", DSFIX_SKIP="half_routing_bias")
    assert seen["dtypes"] == ["torch.bfloat16"]
    assert seen["distinct"] == [1, 1]
