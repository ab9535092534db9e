"""What the autotuner starts a script with, to JSON: keys of arg_mappings are at a config's top, in its first part or in
none."""

import dsfix  # noqa: F401 isort: skip
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from deepspeed.autotuning import scheduler

DIRECTORY = Path(sys.argv[1])
MAPPINGS = {
    "train_micro_batch_size_per_gpu": "--batch",
    "gradient_accumulation_steps": "--accumulate",
    "lr": "--lr",
    "clipping": "--clip",
}
OPTIMIZER = {"optimizer": {"type": "Adam", "params": {"lr": 0.1}}}
EXPERIMENTS = {
    "at the top": {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, **OPTIMIZER},
    "at the top, after others": {"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": 8},
    "in the first": {**OPTIMIZER, "zero_optimization": {"stage": 2}, "fp16": {"enabled": True}},
    "auto, 0 and false": {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": 0, "lr": False},
    "none": {"zero_optimization": {"stage": 1}, "fp16": {"enabled": True}},
    "empty": {},
}


def arguments(mappings, config, given):
    """Those of the script in an experiment with this config."""
    options = SimpleNamespace(master_port=29500, user_script="train.py", user_args=given)
    manager = scheduler.ResourceManager(options, {"localhost": [0]}, 1, str(DIRECTORY), str(DIRECTORY), mappings)
    experiment = {"exp_id": 0, "name": "first", "ds_config": config, "num_gpus": 1, "num_nodes": 1}
    with mock.patch.object(scheduler.threading, "Thread") as thread:
        manager.run_job(experiment, [])
    passed = thread.call_args.kwargs["args"][3]
    return passed


seen = {}
for name, config in EXPERIMENTS.items():
    seen[f"{name}: without mappings"] = arguments({}, dict(config), ["--batch", "1"])
    seen[f"{name}: appended"] = arguments(MAPPINGS, dict(config), [])
    seen[f"{name}: replaced"] = arguments(MAPPINGS, dict(config), ["--batch", "1", "--lr", "0.5", "--other", "5"])
with_mappings = {**EXPERIMENTS["at the top"], "autotuning": {"enabled": True, "arg_mappings": MAPPINGS}}
known = {key: MAPPINGS[key] for key in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")}
seen["mappings in the config"] = arguments(known, with_mappings, ["--batch", "1"])
(DIRECTORY / "0.json").write_text(json.dumps(seen), encoding="utf-8")
