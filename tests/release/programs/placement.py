"""The placement report after the real deepspeed.initialize: what each scene found; on standard error it has a mark."""

import json
import sys

import dsfix  # noqa: F401 isort: skip  before torch and DeepSpeed
import placement_cases
import placement_normal
import placement_talker
from placement_mode import set_mode

from dsfix.lab import Lab
from dsfix.patch import CannotTell

SCENES = {
    "normal": (placement_normal.run, "warn"),
    "cases": (placement_cases.run, "off"),
    "talker": (placement_talker.run, "warn"),
    "talker, move": (placement_talker.run, "move"),
    "talker, error": (placement_talker.run, "error"),
    "talker, off": (placement_talker.run, "off"),
    "attribute, error": (placement_cases.attribute, "error"),
}


def play(lab):
    results = {}
    for name, (run, mode) in SCENES.items():
        print(f"scene {name}", file=sys.stderr, flush=True)
        set_mode(lab, mode)
        results[name] = run(lab)
    return results


with Lab("cuda") as lab:
    try:
        assert lab.deepspeed is not None
    except CannotTell as reason:
        found = {"cannot tell": str(reason)}
    else:
        found = play(lab)
with open(sys.argv[1], "w", encoding="utf-8") as file:
    json.dump(found, file)
