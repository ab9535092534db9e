"""A custom training loop with accelerate: ZeRO-2 and gradient accumulation, a tiny Llama created from a config.

torchrun --nproc_per_node 2 examples/accelerate_loop.py
torchrun --nproc_per_node 2 examples/accelerate_loop.py --plain    # without DeepSpeed, for comparison
"""

import dsfix  # noqa: F401 isort: skip

import sys

import tiny
import torch
from accelerate import Accelerator, DeepSpeedPlugin
from torch.utils.data import DataLoader

ACCUMULATION = 2
STEPS = 3

plugin = DeepSpeedPlugin(zero_stage=2, gradient_accumulation_steps=ACCUMULATION, gradient_clipping=1.0)
accelerator = Accelerator(
    gradient_accumulation_steps=ACCUMULATION, deepspeed_plugin=None if "--plain" in sys.argv else plugin
)

model = tiny.llama()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = torch.randint(64, (accelerator.num_processes * 2 * ACCUMULATION * STEPS, 16))
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=2))

losses = []
for tokens in loader:
    with accelerator.accumulate(model):
        loss = model(input_ids=tokens, labels=tokens).loss
        accelerator.backward(loss)
        losses.append(loss.item())
        if accelerator.sync_gradients:
            norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    if accelerator.sync_gradients:
        accelerator.print(f"loss {sum(losses) / len(losses):.7f} grad_norm {float(norm):.7f}", flush=True)
        losses.clear()
accelerator.end_training()
