"""transformers' Trainer: ZeRO-2, or with `--zero3` ZeRO-3; with `--lora` LoRA of peft with gradient checkpointing.

torchrun --nproc_per_node 2 examples/trainer.py --zero3 --lora
torchrun --nproc_per_node 2 examples/trainer.py --zero3 --lora --plain    # without DeepSpeed, for comparison
"""

import dsfix  # noqa: F401 isort: skip

import sys

import tiny
import torch
from peft import LoraConfig, get_peft_model
from transformers import Trainer, TrainingArguments

config = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "zero_optimization": {"stage": 2, "reduce_bucket_size": 1_000_000, "allgather_bucket_size": 1_000_000},
}
if "--zero3" in sys.argv:
    zero = {"stage": 3, "stage3_param_persistence_threshold": 0, "reduce_bucket_size": 1_000_000}
    config["zero_optimization"] = zero
arguments = TrainingArguments(
    output_dir="out",
    deepspeed=None if "--plain" in sys.argv else config,
    max_steps=3,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    gradient_checkpointing="--lora" in sys.argv,
    gradient_checkpointing_kwargs={"use_reentrant": False},
    optim="adamw_torch",
    learning_rate=1e-2,
    lr_scheduler_type="constant",
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
)

model = tiny.llama()
if "--lora" in sys.argv:
    model = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
data = [{"input_ids": row, "labels": row} for row in torch.randint(64, (24, 16))]
trainer = Trainer(model=model, args=arguments, train_dataset=data)
trainer.train()
for step in trainer.state.log_history[:-1]:
    print(f"loss {step['loss']:.7f} grad_norm {step['grad_norm']:.7f}", flush=True)
