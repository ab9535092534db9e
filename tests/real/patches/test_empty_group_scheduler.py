"""empty_group_scheduler beyond its reproduction: each kind of scheduler, each stage, checkpoints."""

import pytest

PATCH_ID = "empty_group_scheduler"


def test_rates_and_parameters_are_those_of_plain_pytorch(run):
    [seen], _ = run("empty_groups")
    assert len(seen) == 16
    assert not seen["lambda, resumed from objects"]["names dsfix"]
    for name, case in seen.items():
        assert case["rates"] == [pytest.approx(rates, rel=1e-12) for rates in case["expected"]], name
        assert len(case["rates"]) >= 2
        assert case["rates"][0] != case["rates"][-1]
        if "resumed" not in name:
            assert case["difference"] < 1e-5, name
            assert case["last"] == pytest.approx(case["expected last"], rel=1e-12), name
            assert case["equal"]


def test_without_the_patch_torch_refuses_and_deepspeeds_own_go_by_position(run):
    [seen], _ = run("empty_groups", DSFIX_SKIP=PATCH_ID)
    errors = {name: case["error"] for name, case in seen.items() if "error" in case}
    if errors:  # torch 2.10 and newer
        assert {"lambda, stage 0", *(f"lambda, stage {stage}, handed over" for stage in range(4))} <= {*errors}
        assert {errors[name] for name in errors if "lambda" in name} == {"zip() argument 2 is longer than argument 1"}
    for name in ("own, stage 0", "warmup, stage 0"):
        assert seen[name]["rates"][-1] != pytest.approx(seen[name]["expected"][-1], rel=0.1)
        # the second that is left is at the rate of the first
        assert seen[name]["rates"][-1][1] == pytest.approx(seen[name]["expected"][-1][0], rel=1e-12)
