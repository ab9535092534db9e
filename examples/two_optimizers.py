"""A generator and a discriminator, each an engine with an optimizer of its own: ZeRO-2 and gradient accumulation.

torchrun --nproc_per_node 2 examples/two_optimizers.py
torchrun --nproc_per_node 2 examples/two_optimizers.py --plain    # without DeepSpeed, for comparison
"""

import dsfix  # noqa: F401 isort: skip

import os
import sys

import deepspeed
import torch
from torch.nn import LeakyReLU, Linear, Sequential
from torch.nn.functional import softplus

ACCUMULATION = 2
STEPS = 3

config = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": ACCUMULATION,
    "gradient_clipping": 0.0,  # 0.19.3 and newer clip to a norm of 1 by default
    "zero_allow_untested_optimizer": True,
    "zero_optimization": {"stage": 2, "reduce_bucket_size": 1_000_000, "allgather_bucket_size": 1_000_000},
}


class Plain:
    """What an engine does, without DeepSpeed."""

    def __init__(self, model, optimizer):
        self.module, self.optimizer, self.batches = model.to(device), optimizer, 0

    def __call__(self, inputs):
        return self.module(inputs)

    def backward(self, loss):
        (loss / ACCUMULATION).backward()

    def step(self):
        self.batches += 1
        if self.batches % ACCUMULATION == 0:
            for parameter in self.module.parameters():
                torch.distributed.all_reduce(parameter.grad)
                parameter.grad /= torch.distributed.get_world_size()
            self.optimizer.step()
            self.optimizer.zero_grad()


def prepare(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    if "--plain" in sys.argv:
        return Plain(model, optimizer)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


deepspeed.init_distributed(verbose=False)
deepspeed.get_accelerator().set_device(int(os.environ["LOCAL_RANK"]))
device = deepspeed.get_accelerator().current_device_name()
torch.manual_seed(0)
generator = prepare(Sequential(Linear(8, 32), LeakyReLU(), Linear(32, 16)))
discriminator = prepare(Sequential(Linear(16, 32), LeakyReLU(), Linear(32, 1)))
torch.manual_seed(torch.distributed.get_rank())
for _ in range(STEPS * ACCUMULATION):
    real, noise = torch.randn(4, 16, device=device) + 1, torch.randn(4, 8, device=device)
    made = generator(noise)
    wrong = softplus(-discriminator(real)).mean() + softplus(discriminator(made.detach())).mean()
    discriminator.backward(wrong)
    discriminator.step()

    discriminator.module.requires_grad_(False)
    # not the engine, which since 0.18.5 fails where all its parameters are frozen: IndexError
    unconvincing = softplus(-discriminator.module(made)).mean()
    generator.backward(unconvincing)
    generator.step()
    discriminator.module.requires_grad_(True)
    if torch.distributed.get_rank() == 0:
        print(f"loss {wrong.item():.7f} {unconvincing.item():.7f}", flush=True)
torch.distributed.destroy_process_group()
