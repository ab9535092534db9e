"""ZeRO-3: load_checkpoint(tag=…, load_optimizer_states=False) loads the weights of the latest checkpoint.

Why: with ZeRO-3 and `load_optimizer_states=False` the weights are assembled from the ranks' files by the function
    behind zero_to_fp32.py, which does not get the tag: it uses the one in the file `latest`. Steps, schedule and client
    state are the requested tag's. Nothing fails, except without that file: "Unable to find 'latest' file".
How: the function gets the tag.
Changes: jobs that load a checkpoint other than the latest this way get that checkpoint's weights. A job that was
    started this way without the patch, and its checkpoints, started from the latest weights.
Workaround: Scripts write the tag into the file `latest` before they load. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_LOAD = "deepspeed.runtime.engine:DeepSpeedEngine._load_checkpoint"

PATCH = Patch(
    title="ZeRO-3: load_checkpoint(tag=…, load_optimizer_states=False) loads the weights of the latest checkpoint",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0"},
    changes=(
        Edit(
            _LOAD,
            replace="get_fp32_state_dict_from_zero_checkpoint(load_dir)",
            # what is read is not used for a universal checkpoint, whose folder has no such files
            code="get_fp32_state_dict_from_zero_checkpoint(\n"
            "    load_dir, None if self.load_universal_checkpoint() else str(tag))",
            effect=RAN,  # which tag the file `latest` names is not read here
            when="not self.load_universal_checkpoint()",
        ),
    ),
    symptom=r"in _load_checkpoint[\s\S]*in get_fp32_state_dict_from_zero_checkpoint"
    r"[\s\S]*Unable to find 'latest' file",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/4171": "introduced",
    },
    present=(Source(_LOAD, "checkpoint['module'] = get_fp32_state_dict_from_zero_checkpoint(load_dir)"),),
)

_TAGS = ("first", "second")


def reproduce(lab: Lab) -> str:
    from . import _checkpoints as checkpoints

    directory = lab.tmp / "checkpoints"
    engine, saved = _engine(lab), {}
    for step, tag in enumerate(_TAGS):
        checkpoints.train(lab, engine, [lab.models.regression_batch(rank=0, step=step)])
        engine.save_checkpoint(str(directory), tag=tag)
        saved[tag] = lab.parameters(engine)

    resumed = _engine(lab)
    resumed.load_checkpoint(str(directory), tag=_TAGS[0], load_optimizer_states=False)
    assert resumed.global_steps == 1, f"{resumed.global_steps} steps"
    loaded = lab.parameters(resumed)
    if lab.reference.largest_difference(loaded, saved[_TAGS[1]]).absolute == 0.0:
        raise BugPresent("asked for the first of two checkpoints, the weights are those of the second")
    difference = lab.reference.largest_difference(loaded, saved[_TAGS[0]])
    assert difference.absolute == 0.0, f"loaded weights: {difference}"

    (directory / "latest").unlink()
    resumed = _engine(lab)
    resumed.load_checkpoint(str(directory), tag=_TAGS[0], load_optimizer_states=False)
    difference = lab.reference.largest_difference(lab.parameters(resumed), saved[_TAGS[0]])
    assert difference.absolute == 0.0, f"loaded weights, without the file latest: {difference}"
    return "the weights of each tag are those that were saved, with a file named latest and without"


def _engine(lab: Lab) -> Any:
    model = lab.models.MLP()
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": 3},
    }
    return lab.initialize(model, config, model_parameters=model.parameters())
