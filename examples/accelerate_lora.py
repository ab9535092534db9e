"""A custom training loop with accelerate: LoRA under ZeRO-2 with a schedule, on a tiny Llama created from a config.

torchrun --nproc_per_node 2 examples/accelerate_lora.py
torchrun --nproc_per_node 2 examples/accelerate_lora.py --plain    # without DeepSpeed, for comparison
"""

import dsfix  # noqa: F401 isort: skip

import sys

import tiny
import torch
from accelerate import Accelerator, DeepSpeedPlugin
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import get_linear_schedule_with_warmup

STEPS = 3

plugin = DeepSpeedPlugin(zero_stage=2, gradient_accumulation_steps=1, gradient_clipping=1.0)
accelerator = Accelerator(deepspeed_plugin=None if "--plain" in sys.argv else plugin)

model = tiny.llama()
model = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
undecayed = ("bias", "norm.weight", "layernorm.weight")
groups = [
    # with LoRA the first group is empty
    {"params": [p for name, p in trained if name.endswith(undecayed)], "weight_decay": 0.0, "lr": 1e-3},
    {"params": [p for name, p in trained if not name.endswith(undecayed)], "weight_decay": 0.1},
]
optimizer = torch.optim.AdamW(groups, lr=1e-2)
scheduler = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=1, num_training_steps=STEPS)
data = torch.randint(64, (accelerator.num_processes * 2 * STEPS, 16))
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=2), scheduler)

for tokens in loader:
    loss = model(input_ids=tokens, labels=tokens).loss
    accelerator.backward(loss)
    norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    accelerator.print(f"loss {loss.item():.7f} grad_norm {float(norm):.7f}", flush=True)
accelerator.end_training()
