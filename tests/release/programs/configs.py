"""Runs each config on the installed DeepSpeed: read it, train on one CPU rank, or read it for inference."""

import json
import sys

import dsfix  # noqa: F401  # isort: skip
import deepspeed
import torch
from deepspeed import comm
from deepspeed.inference.config import DeepSpeedInferenceConfig
from deepspeed.runtime.config import DeepSpeedConfig


def read(config, world_size):
    """Returns the attributes that the tests check."""
    kept = comm.get_world_size, comm.get_rank
    comm.get_world_size, comm.get_rank = (lambda *_: world_size), (lambda *_: 0)
    try:
        results = DeepSpeedConfig(config)
    finally:
        comm.get_world_size, comm.get_rank = kept
    new = hasattr(results, "bfloat16_config")
    return {
        "batch": [
            results.train_batch_size,
            results.train_micro_batch_size_per_gpu,
            results.gradient_accumulation_steps,
        ],
        "bf16": results.bfloat16_config.enabled if new else results.bfloat16_enabled,
        "fp16": results.float16_config.enabled if new else results.fp16_enabled,
        "stage": int(results.zero_config.stage),
        "reduce_bucket_size": int(results.zero_config.reduce_bucket_size),
        "gradient_clipping": results.gradient_clipping,
        "zero_allow_untested_optimizer": results.zero_allow_untested_optimizer,
    }


def train(config, client):
    """Trains a linear layer for one step."""
    # compiling the shared-memory kernels takes a minute, and a single rank does not communicate
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
    model = torch.nn.Linear(4, 4)
    given = {"model_parameters": model.parameters()}
    if client:
        given = {"optimizer": getattr(torch.optim, client)(model.parameters(), lr=0.1)}
    engine, *_ = deepspeed.initialize(model=model, config=config, **given)
    dtype = next(engine.module.parameters()).dtype
    engine.backward(engine(torch.ones(1, 4, dtype=dtype)).float().sum())
    engine.step()
    return {"dtype": str(dtype).rpartition(".")[2], "optimizer": type(engine.optimizer).__name__}


with open(sys.argv[2], encoding="utf-8") as file:
    cases = json.load(file)
outcomes = []
for case in cases:
    try:
        if case.get("train"):
            outcomes.append(train(case["config"], case.get("client")))
        elif case.get("infer"):
            DeepSpeedInferenceConfig(**case["config"])
            outcomes.append({})
        else:
            outcomes.append(read(case["config"], case.get("world_size", 1)))
    except Exception as error:
        outcomes.append({"error": f"{type(error).__name__}: {error}"})
with open(sys.argv[1], "w", encoding="utf-8") as out:
    json.dump(outcomes, out)
