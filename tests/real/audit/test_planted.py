"""Each bug planted in the engine is found: its phase, its kind and its parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from packaging.version import Version


def _frozen(name):
    return name.startswith("blocks.1.") or name == "narrow.bias"


def _in_other_groups(name):
    """Norms, biases, the gate and the embedding; the first group has the matrices."""
    first = name.endswith("weight") and "norm" not in name and not name.startswith(("embed.", "gate."))
    return not first and not _frozen(name)


@dataclass(frozen=True)
class Difference:
    """An expected difference. names: exactly these parameters; None if irrelevant."""

    phase: str
    what: str
    step: int
    names: Callable[[str], bool] | None = None


@dataclass(frozen=True)
class Plant:
    """A function of plants.py and the differences it must cause; also: differences it may cause in addition.

    options: of the plan.
    """

    name: str
    found: tuple[Difference, ...]
    also: tuple[tuple[str, str, int], ...] = ()
    options: dict[str, Any] = field(default_factory=dict)


_RESUME = {"phases": ("resume",)}
_STATE = ("state exp_avg", "state exp_avg_sq", "state step")
_NORM, _GRADIENTS = ("training", "norm", 0), ("training", "gradients", 0)

_ALL = {
    plant.name: plant
    for plant in (
        Plant("dropped_micro_batch", (Difference(*_GRADIENTS),), also=(_NORM,)),
        Plant("wrong_group_lr", (Difference("training", "parameters", 0, _in_other_groups),)),
        Plant("frozen_decayed", (Difference("training", "parameters", 0, _frozen),)),
        Plant(
            "unreduced_last_bucket",
            (Difference(*_GRADIENTS, lambda name: name == "embed.weight"),),
            also=(_NORM,),
            options={"ranks": 2, "config": {"gradient_clipping": 0.0}},
        ),
        Plant(
            "one_rank_rounds",
            (Difference("training", "weights", 0), Difference("training", "loss", 1)),
            also=(("training", "parameters", 0), ("training", "norm", 1), ("training", "gradients", 1)),
            options={"ranks": 2},
        ),
        Plant("overflow_taken", (Difference("training", "skipped", 0),), options={"device": "cuda", "skip_step": 0}),
        Plant(
            "optimizer_lost_on_load",
            tuple(Difference("resume", what, 1, lambda name: not _frozen(name)) for what in _STATE),
            also=(("resume", "parameters", 1), ("resume", "weights", 1)),  # bf16: the weights are restored rounded
            options=_RESUME,
        ),
        Plant("export_one_step_old", (Difference("16bit", "parameters", 1),), options={"phases": ("16bit",)}),
        Plant(
            "export_without_frozen",
            (Difference("zero_to_fp32", "parameters", 1, _frozen),),
            options={"phases": ("zero_to_fp32",)},
        ),
    )
}


# the fewest runs that cover each bug; bugs of different kinds are planted together
@pytest.mark.parametrize(
    ("names", "stage", "precision"),
    [
        (("dropped_micro_batch", "frozen_decayed"), 2, "fp32"),
        (("wrong_group_lr",), 0, "fp32"),
        (("wrong_group_lr",), 3, "bf16"),
        (("unreduced_last_bucket",), 3, "fp32"),
        (("one_rank_rounds",), 1, "fp32"),
        (("overflow_taken",), 2, "fp16"),
        (("optimizer_lost_on_load", "export_one_step_old", "export_without_frozen"), 2, "fp32"),
    ],
    ids=str,
)
def test_a_planted_bug_is_found(names, stage, precision, plan, release, planted, tried):
    if release < Version("0.13.0") and precision == "fp32" and stage < 3:
        pytest.skip(
            "it does not train on CPU ranks: unsupported grad type without ZeRO, ZeRO-1/2 modify a view in place"
        )
    if release < Version("0.16.0") and "export_without_frozen" in names:
        pytest.skip("with torch >= 2.6 zero_to_fp32 cannot load the checkpoints of this release")
    options = {}
    for name in names:
        phases = (*options.get("phases", ()), *_ALL[name].options.get("phases", ()))
        options = {**options, **_ALL[name].options, "phases": phases}
    made = plan(stage, precision, **options)
    if release < Version("0.14.1") and stage == 3 and made.device == "cpu" and made.ranks == 1:
        pytest.skip("it does not train on one CPU rank: ZeRO-3 waits for a stream, which CPUs do not have")
    verdict = tried(made, plant=planted(*names))

    from dsfix.audit.model import build  # imports torch

    assert verdict.failed == ""
    check(names, verdict, [name for name, _ in build(made).named_parameters()])


def check(names, verdict, parameters):
    """Asserts that `verdict` contains the differences of these plants and no others."""
    results = {(each.phase, each.what, each.step): each for each in verdict.differences}
    for name in names:
        for expected in _ALL[name].found:
            difference = results.pop((expected.phase, expected.what, expected.step))
            assert difference.off > difference.bound
            if expected.names is not None:
                assert set(difference.names) == set(filter(expected.names, parameters)), name
    assert results.keys() <= {each for name in names for each in _ALL[name].also}
