"""`deepspeed --autotuning`: the tuned value of a nested key does not reach the script's command line.

Why: `autotuning.arg_mappings` names the arguments of the script that get tuned values. The launcher looks for the key
    in an experiment's config, through 0.19.3 only in the first of several nested dicts: a key of `zero_optimization` is
    not found where the config has `optimizer` or `fp16` before it. Experiments run with the script's own value, and are
    ranked by it. Top-level keys, such as the micro-batch size, are found.
How: all nested dicts are searched, except `arg_mappings` itself, which is in experiments' configs, with the same keys.
    As with top-level keys, 0 and false are not passed, and a value is kept for later experiments that have none. The
    bug is in the launcher's process, which runs no script: use `python -m dsfix run deepspeed …` or `python -m dsfix
    enable`.
Changes: with such a mapping experiments run with the values that they are meant to compare. No checkpoint is concerned.
Workaround: The config has the section with the tuned key before all other sections. You can keep it.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_GET = "deepspeed.autotuning.utils:get_val_by_key"

PATCH = Patch(
    title="deepspeed --autotuning: arg_mappings does not pass tuned values of nested keys to the script",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.19.4"},
    changes=(
        Edit(
            _GET,
            replace="return get_val_by_key(v, k)",
            code="found = None if v is d.get('arg_mappings') else get_val_by_key(v, k)\n"
            "if found is not None:\n    return found",
            effect=RAN,
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/8176": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/8177": "fixed in 0.19.4",
    },
    fixed_in="0.19.4",
    fixed=(Source(_GET, "r = get_val_by_key(v, k)"),),
    device="cpu",
)


def reproduce(lab: Lab) -> str:
    from unittest import mock

    from packaging.version import Version

    _ = lab.deepspeed
    from deepspeed.autotuning import scheduler

    mappings = {"stage": "--stage", "train_micro_batch_size_per_gpu": "--batch", "threads": "--threads"}
    arguments = SimpleNamespace(master_port=29500, user_script="train.py", user_args=["--stage", "1", "--other", "5"])
    manager = scheduler.ResourceManager(arguments, {"localhost": [0]}, 1, str(lab.tmp), str(lab.tmp), mappings)
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "Adam", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": 3},
    }
    if Version(lab.deepspeed.__version__) < Version("0.19.4"):  # later ones take an argument's name for its value
        config = {"optimizer": config["optimizer"], "autotuning": {"arg_mappings": mappings}, **config}
    experiment = {"exp_id": 0, "name": "first", "ds_config": config, "num_gpus": 1, "num_nodes": 1}
    with mock.patch.object(scheduler.threading, "Thread") as thread:
        manager.run_job(experiment, [])
    passed = thread.call_args.kwargs["args"][3]
    if passed == ["--stage", "1", "--other", "5", "--batch", "4"]:
        raise BugPresent("an experiment with ZeRO-3 starts the script with --stage 1")
    assert passed == ["--stage", "3", "--other", "5", "--batch", "4"], passed
    return "an experiment with ZeRO-3 starts the script with --stage 3"
