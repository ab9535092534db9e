"""empty_group_scheduler beyond its reproduction: each kind of scheduler, each stage, checkpoints."""

import pytest


def test_rates_and_parameters_are_those_of_plain_pytorch(run):
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
