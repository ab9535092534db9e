"""deepspeed.initialize: trainings over the space of configs, step by step as `python -m dsfix audit` has them."""

from __future__ import annotations

import os

from dsfix.audit.trial import trial
from dsfix.lab.session import Lab
from matrix.parts import space
from matrix.parts.drawing import Draw
from matrix.parts.part import part


def _config(lab: Lab, draw: Draw, scheduled: bool) -> None:
    release = lab.deepspeed.__version__.partition("+")[0]
    row = space.plain()
    chosen = draw.subset([name for name in space.FACTORS if name != "schedule"])
    for name in chosen:
        row[name] = draw(name, list(space.FACTORS[name]))
    if scheduled:
        row["schedule"] = draw("schedule", [each for each in space.FACTORS["schedule"] if each != "none"])
    draw.assume(not space.broken(row, release))
    skipped = os.environ.get("DSFIX_SKIP", "").split(",")
    actual = trial(space.plan(row, release), skip=skipped, timeout=300.0 if scheduled else 120.0)
    assert actual.agrees, actual.failed or "; ".join(map(str, actual.differences[:2]))


@part("initialize/configs", "plain PyTorch, by dsfix.audit", examples=25)
def _configs(lab: Lab, draw: Draw) -> None:
    _config(lab, draw, scheduled=False)


@part("initialize/schedules of streams", "plain PyTorch, by dsfix.audit; and no race", examples=6)
def _schedules(lab: Lab, draw: Draw) -> None:
    _config(lab, draw, scheduled=True)
