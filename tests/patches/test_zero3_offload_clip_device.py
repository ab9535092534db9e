"""zero3_offload_clip_device does not apply if its bug was fixed by hand, differently from upstream and the patch."""

import json

import pytest

from tests.stand_ins import STAGE3

PATCH = "zero3_offload_clip_device"
SCALING = "        self.fp32_partitioned_groups_flat[sub_group_id].grad.mul_(1. / combined_scale)\n"
ANCHOR = " " * 16 + "combined_scale = clip * self.loss_scale\n"
MOVE = "combined_scale = combined_scale.to(self.device)\n"
OWN_IF = " " * 12 + "if clip > 1 and torch.is_tensor(combined_scale):\n"
CHANGES = {
    "nothing": (ANCHOR, ANCHOR),
    "after the anchor": (ANCHOR, ANCHOR + " " * 16 + MOVE),
    "before it is used": (SCALING, " " * 8 + MOVE + SCALING),
    "in an if of its own": (ANCHOR, ANCHOR + OWN_IF + " " * 16 + MOVE),
    "as a number": (SCALING, SCALING.replace("combined_scale)", "combined_scale.item())")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_hand_edit_is_left_alone(environment, change):
    text, (old, new) = STAGE3.replace("        return combined_scale\n", SCALING), CHANGES[change]
    assert text.count(old) == 1
    done = environment.install("0.14.2", text.replace(old, new)).dsfix("list", "--json")
    outcomes = {each["id"]: each["outcome"] for each in json.loads(done.stdout)["patches"]}
    assert outcomes[PATCH] == ("pending" if change == "nothing" else "already-fixed")
