"""A custom training loop with accelerate: ZeRO-2 and gradient accumulation, a tiny Llama created from a config.

python examples/accelerate_loop.py            # or: accelerate launch, torchrun
python examples/accelerate_loop.py --plain    # without DeepSpeed, for comparison
"""

import dsfix  # noqa: F401 isort: skip

import sys

import torch
from accelerate import Accelerator, DeepSpeedPlugin
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

ACCUMULATION = 4
STEPS = 3

plugin = DeepSpeedPlugin(zero_stage=2, gradient_accumulation_steps=ACCUMULATION, gradient_clipping=1.0)
accelerator = Accelerator(
    gradient_accumulation_steps=ACCUMULATION, deepspeed_plugin=None if "--plain" in sys.argv else plugin
)

torch.manual_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = torch.randint(64, (2 * ACCUMULATION * STEPS, 16))
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
