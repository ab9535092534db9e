"""ZeRO-2 with gradient accumulation on CPU ranks, compared with PyTorch in one process on the same batches.

This script does not use dsfix. The exit status is 1 if the weights differ: DeepSpeed 0.17.6 to 0.18.2 lose all but the
last micro-batch of a step. Works with any launcher that sets RANK and WORLD_SIZE.
"""

import json
import sys
from pathlib import Path

import deepspeed
import torch

# otherwise CPU ranks compile shared-memory collectives first
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False

CONFIG = json.loads(Path(__file__).with_name("ds_config.json").read_text())
SAMPLES, MICRO_BATCHES = CONFIG["train_micro_batch_size_per_gpu"], CONFIG["gradient_accumulation_steps"]
STEPS, FEATURES = 4, 8


def new_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def new_optimizer(model):
    return torch.optim.Adam(model.parameters(), lr=0.01)


def micro_batch(step, number, rank):
    """Inputs [SAMPLES, FEATURES] and targets [SAMPLES, 1]."""
    generator = torch.Generator().manual_seed(step * 1000 + number * 100 + rank)
    inputs = torch.randn(SAMPLES, FEATURES, generator=generator)
    return inputs, inputs.sum(1, keepdim=True)


def loss_of(model, batch):
    inputs, targets = batch
    return torch.nn.functional.mse_loss(model(inputs), targets)


def train(batch=micro_batch, after_step=lambda step: None):
    """The model trained by DeepSpeed; `after_step` is called with the number of each step."""
    model = new_model()
    engine, *_ = deepspeed.initialize(model=model, optimizer=new_optimizer(model), config=CONFIG)
    for step in range(STEPS):
        for number in range(MICRO_BATCHES):
            engine.backward(loss_of(engine, batch(step, number, deepspeed.comm.get_rank())))
            engine.step()
        after_step(step)
    return engine.module


def reference(ranks):
    """The model trained by PyTorch with the batches of all ranks."""
    model = new_model()
    optimizer = new_optimizer(model)
    for step in range(STEPS):
        for number in range(MICRO_BATCHES):
            for rank in range(ranks):
                (loss_of(model, micro_batch(step, number, rank)) / (MICRO_BATCHES * ranks)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def judge(trained, ranks):
    """Prints the difference from the reference weights; returns the exit status, 1 if they differ."""
    pairs = zip(trained.parameters(), reference(ranks).parameters())
    difference = max((a.detach() - b.detach()).abs().max().item() for a, b in pairs)
    right = difference < 1e-4
    verdict = "right" if right else "WRONG"
    sys.stdout.write(f"deepspeed {deepspeed.__version__}, {verdict}: {difference:.1e} from PyTorch\n")  # whole lines
    return 0 if right else 1


if __name__ == "__main__":
    deepspeed.init_distributed("gloo", verbose=False)
    sys.exit(judge(train(), deepspeed.comm.get_world_size()))
