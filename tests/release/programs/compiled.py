"""Compiles a model that calls an edited function of DeepSpeed; writes its result and how often the edit ran."""

import dsfix  # noqa: F401 isort: skip
import importlib
import json
import sys

import torch

from dsfix.engine import engine
from dsfix.engine.cache import Cache
from dsfix.patch import Edit, Patch, Severity

seen = torch.seen = []
module = importlib.import_module("deepspeed.runtime.sparse_tensor")
edit = Edit(
    f"{module.__name__}:SparseTensor.type",
    "__import__('torch').seen.append(1)",
    before="return 'deepspeed.SparseTensor'",
)
engine.apply("probe", Patch("t", Severity.CRASH, {}, (edit,), "", {}, None), module, Cache())


class Model(torch.nn.Module):
    def forward(self, x):
        y = x * 2
        module.SparseTensor.type()
        return y + 1


value = torch.compile(Model(), backend="eager")(torch.ones(3)).tolist()
with open(sys.argv[1], "w", encoding="utf-8") as out:
    json.dump([value, len(seen)], out)
