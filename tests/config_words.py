"""Configs for tables of tests: KEY=JSON …, with a bare word for a string and `zero` for zero_optimization.

A name of `named` stands for its words. `whole` makes a Whole, and `…` extends a given config.
"""

import copy
import json
import re

NAMED = {
    "nothing": "",
    "batch": "train_micro_batch_size_per_gpu=2",
    "untested": "zero_allow_untested_optimizer=true",
    "adamw": "optimizer.type=AdamW optimizer.params.lr=1e-4",
    "torch_adam": "optimizer.type=AdamW optimizer.params.lr=1e-4 optimizer.params.torch_adam=true",
    "muon": "optimizer.type=Muon optimizer.params.lr=0.01",
    "sgd": "optimizer.type=SGD optimizer.params.lr=0.1",
    "offload": "zero.offload_optimizer.device=cpu",
    "nvme": "zero.offload_optimizer.device=nvme zero.offload_optimizer.nvme_path=/nvme",
    "kernels": "replace_with_kernel_inject=true",
    "inference": "dtype=fp16 replace_with_kernel_inject=true tensor_parallel.tp_size=2",
    "curriculum": "data_efficiency.enabled=true data_efficiency.data_sampling.enabled=true "
    "data_efficiency.data_sampling.curriculum_learning.enabled=true "
    "data_efficiency.data_sampling.curriculum_learning.curriculum_metrics={}",
    "template": 'train_batch_size=${BATCH} zero.stage=ZERO_STAGE fp16.enabled="{{ h }}"',
    "cosine": "scheduler.type=WarmupCosineLR scheduler.params.total_num_steps=100",
    "one_cycle": "scheduler.type=OneCycle scheduler.params.cycle_min_lr=0.01 scheduler.params.cycle_max_lr=0.1",
}


class VerbatimConfig(dict):
    """A config to which no batch size is added."""


def config_of(words, start=None, named=NAMED):
    made = {}
    words = re.sub(r"(?<!\S)[a-z_]+(?!\S)", lambda name: named.get(name[0], name[0]), words)
    if words.startswith(("whole", "…")):
        made = VerbatimConfig() if words.startswith("whole") else copy.deepcopy(start)
        words = words.partition(" ")[2]
    for name, value in re.findall(r'([^\s=]+)=("[^"]*"|\S+)', words):
        *path, last = re.sub(r"^zero\.", "zero_optimization.", name).split(".")
        block = made
        for each in path:
            block = block.setdefault(each, {})
        try:
            block[last] = json.loads(value)
        except ValueError:  # a word
            block[last] = value
    return made
