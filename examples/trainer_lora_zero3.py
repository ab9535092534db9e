"""transformers' Trainer: LoRA of peft under ZeRO-3 with gradient checkpointing, on a tiny Llama created from a config.

python examples/trainer_lora_zero3.py            # or: torchrun, accelerate launch
python examples/trainer_lora_zero3.py --plain    # without DeepSpeed, for comparison
"""

import dsfix  # noqa: F401 isort: skip

import sys

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

config = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0, "reduce_bucket_size": 1_000_000},
}
arguments = TrainingArguments(
    output_dir="out",
    deepspeed=None if "--plain" in sys.argv else config,
    max_steps=3,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    gradient_checkpointing=True,
    gradient_checkpointing_kwargs={"use_reentrant": False},
    optim="adamw_torch",
    learning_rate=1e-2,
    lr_scheduler_type="constant",
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
)

torch.manual_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
)
model = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
data = [{"input_ids": row, "labels": row} for row in torch.randint(64, (12, 16))]
trainer = Trainer(model=model, args=arguments, train_dataset=data)
trainer.train()
for step in trainer.state.log_history[:-1]:
    print(f"loss {step['loss']:.7f} grad_norm {step['grad_norm']:.7f}", flush=True)
