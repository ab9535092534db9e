"""Builds of 0.14.2 in which the founding bug was fixed by hand, otherwise than upstream or the patch fix it.

The contract has every patch's own edits, drift, and other packages that come first; tests/engine/test_gate has builds
without a usable version.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.version import Version

PATCH = "zero3_offload_clip_device"
STAGE3 = Path("deepspeed/runtime/zero/stage3.py")
ANCHOR = "                combined_scale = clip * self.loss_scale\n"
MOVE = "combined_scale = combined_scale.to(self.device)\n"
SCALING = "        self.fp32_partitioned_groups_flat[sub_group_id].grad.mul_(1. / combined_scale)\n"
GUARDED = "        if torch.is_tensor(combined_scale):\n"
OWN_IF = " " * 12 + "if clip > 1 and torch.is_tensor(combined_scale):\n"
CHANGES = {
    "nothing": (ANCHOR, ANCHOR),
    "after the anchor": (ANCHOR, ANCHOR + " " * 16 + MOVE),
    "before it is used": (SCALING, " " * 8 + MOVE + SCALING),
    "before it is used, guarded": (SCALING, GUARDED + " " * 12 + MOVE + SCALING),
    "in an if of its own": (ANCHOR, ANCHOR + OWN_IF + " " * 16 + MOVE),
    "as a number": (SCALING, SCALING.replace("combined_scale)", "combined_scale.item())")),
}


@pytest.fixture(autouse=True)
def _only_with_the_affected_release(release):
    if release != Version("0.14.2"):
        pytest.skip("the forks are made from 0.14.2")


@pytest.mark.parametrize("change", CHANGES)
def test_a_hand_edit_is_left_alone(original, environment, tmp_path, change):
    fork = Path(shutil.copytree(original, tmp_path / "fork"))
    text, (old, new) = (fork / STAGE3).read_text(encoding="utf-8"), CHANGES[change]
    assert text.count(old) >= 1
    (fork / STAGE3).write_text(text.replace(old, new), encoding="utf-8")
    command = [sys.executable, "-m", "dsfix", "list", "--json"]
    done = subprocess.run(command, cwd=fork, env=environment, capture_output=True, text=True, check=True)
    outcomes = {each["id"]: each["outcome"] for each in json.loads(done.stdout)["patches"]}
    assert outcomes[PATCH] == ("pending" if change == "nothing" else "already-fixed")


def test_a_caller_that_passes_a_number_is_not_broken(run_program):
    # a subclass or a fork whose `step` calls .item() does not have the bug, and worked without dsfix
    found, _ = run_program("clip")
    assert found["outcomes"][PATCH] == "applied"
    assert found["tensor"] == found["number"] == [0.25, 0.25]
