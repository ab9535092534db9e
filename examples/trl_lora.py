"""trl's SFTTrainer, or with `--dpo` its DPOTrainer: LoRA with ZeRO-2 and gradient accumulation.

torchrun --nproc_per_node 2 examples/trl_lora.py            # --offload: the optimizer is on the CPU
torchrun --nproc_per_node 2 examples/trl_lora.py --plain    # without DeepSpeed, for comparison
"""

import dsfix  # noqa: F401 isort: skip

import sys

import tiny
from datasets import Dataset
from peft import LoraConfig
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

zero = {"stage": 2, "reduce_bucket_size": 1_000_000, "allgather_bucket_size": 1_000_000}
if "--offload" in sys.argv:
    zero["offload_optimizer"] = {"device": "cpu"}
config = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "zero_force_ds_cpu_optimizer": False,
    "zero_optimization": zero,
}
arguments = {
    "output_dir": "out",
    "deepspeed": None if "--plain" in sys.argv else config,
    "max_steps": 3,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "optim": "adamw_torch",
    "learning_rate": 1e-2,
    "lr_scheduler_type": "constant",
    "bf16": False,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": [],
    "disable_tqdm": True,
}

model, tokenizer = tiny.llama(), tiny.tokenizer()
lora = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
if "--dpo" in sys.argv:
    data = Dataset.from_dict({"prompt": tiny.texts(48, 4), "chosen": tiny.texts(48), "rejected": tiny.texts(48)})
    trainer_class, arguments = DPOTrainer, DPOConfig(**arguments)
else:
    data = Dataset.from_dict({"text": tiny.texts(48)})
    trainer_class, arguments = SFTTrainer, SFTConfig(**arguments)
trainer = trainer_class(model, args=arguments, train_dataset=data, processing_class=tokenizer, peft_config=lora)
trainer.train()
for step in trainer.state.log_history[:-1]:
    print(f"loss {step['loss']:.7f} grad_norm {step['grad_norm']:.7f}", flush=True)
