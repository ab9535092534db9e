"""transformers' Trainer with LoRA of peft on a tiny Llama made from a config, under ZeRO-3; writes losses to JSON."""

import dsfix  # noqa: F401 isort: skip
import json
import sys
from pathlib import Path

from dsfix.lab import Lab

lab = Lab()
torch = lab.torch
deepspeed = lab.deepspeed

from peft import LoraConfig, get_peft_model  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments  # noqa: E402

STEPS = 2


def train(directory, checkpointing):
    torch.manual_seed(0)
    arguments = TrainingArguments(
        output_dir=str(directory),
        max_steps=STEPS,
        per_device_train_batch_size=2,
        learning_rate=0.1,
        lr_scheduler_type="constant",
        optim="sgd",
        logging_steps=1,
        max_grad_norm=0.0,
        logging_nan_inf_filter=False,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        seed=0,
        gradient_checkpointing=checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False} if checkpointing else None,
        deepspeed={
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": "auto",
            "train_batch_size": "auto",
            "gradient_clipping": 0.0,
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "zero_optimization": {
                "stage": 3,
                "stage3_param_persistence_threshold": 0,
                "reduce_bucket_size": 1_000_000,
            },
        },
    )
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=32,
            use_cache=False,
        )
    )
    model = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    generator = torch.Generator().manual_seed(1)
    rows = [torch.randint(64, (16,), generator=generator) for _ in range(2 * STEPS)]
    data = [{"input_ids": row, "labels": row} for row in rows]
    trainer = Trainer(model=model, args=arguments, train_dataset=data)
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


directory = Path(sys.argv[1])
result = {"without checkpointing": train(directory, checkpointing=False)}
try:
    result["with checkpointing"] = train(directory, checkpointing=True)
except RuntimeError as error:
    result["error"] = f"{type(error).__name__}: {error}"
Path(directory, "result.json").write_text(json.dumps(result), encoding="utf-8")
lab.close()
