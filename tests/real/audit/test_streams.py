"""The audit under a schedule: silent if DeepSpeed waits where it must, and not otherwise."""

import pytest
from packaging.version import Version

from dsfix.audit.plan import Plan
from dsfix.lab.accelerator import deepspeed_version

FIRST_WITHOUT_KNOWN_RACES = Version("0.19.8")


@pytest.fixture(autouse=True)
def release():
    if Version(deepspeed_version()) < FIRST_WITHOUT_KNOWN_RACES:
        pytest.skip("this DeepSpeed has races of its own")


def plan(stage, schedule):
    zero = {"stage": stage, "overlap_comm": True, "reduce_bucket_size": 500}
    if stage == 3:
        zero["stage3_param_persistence_threshold"] = 0
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.001, "torch_adam": True}},
        "zero_optimization": {**zero, "allgather_bucket_size": 500},
    }
    return Plan(config, ranks=2, steps=2, schedule=schedule, phases=())


@pytest.mark.parametrize(("stage", "schedule"), [(2, "late"), (3, "ahead"), (3, "random:1")])
def test_a_right_release_agrees(stage, schedule, tried):
    verdict = tried(plan(stage, schedule))
    assert verdict.agrees, verdict


@pytest.mark.parametrize("stage", [2, 3])
def test_missing_waits_are_found(stage, planted, tried):
    plant = planted("waits_left_out")
    if stage == 2:  # without a schedule nothing waits
        assert tried(plan(stage, ""), plant=plant).agrees
    late = tried(plan(stage, "late"), plant=plant)
    assert late.differences
