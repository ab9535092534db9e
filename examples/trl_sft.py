"""trl's SFTTrainer: full fine-tuning with ZeRO-2, the optimizer offloaded to the CPU, and gradient accumulation.

    python examples/trl_sft.py            # or: accelerate launch, torchrun
    python examples/trl_sft.py --plain    # without DeepSpeed, for comparison

The model and the tokenizer are tiny and created here; nothing is downloaded.
"""

import dsfix  # noqa: F401 isort: skip

import sys

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

zero = {"stage": 2, "reduce_bucket_size": 1_000_000, "allgather_bucket_size": 1_000_000}
if "--no-offload" not in sys.argv:
    zero["offload_optimizer"] = {"device": "cpu"}
config = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "zero_force_ds_cpu_optimizer": False,
    "zero_optimization": zero,
}
arguments = SFTConfig(
    output_dir="out",
    deepspeed=None if "--plain" in sys.argv else config,
    max_steps=3,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=4,
    optim="adamw_torch",
    learning_rate=1e-2,
    lr_scheduler_type="constant",
    bf16=False,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
)

torch.manual_seed(0)
words = ["<unk>", "<pad>", "<eos>", *(f"w{number}" for number in range(61))]
tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>", eos_token="<eos>")
model = LlamaForCausalLM(
    LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
)
texts = [" ".join(words[3 + number] for number in row) for row in torch.randint(61, (24, 12)).tolist()]
data = Dataset.from_list([{"text": text} for text in texts])
trainer = SFTTrainer(model=model, args=arguments, train_dataset=data, processing_class=tokenizer)
trainer.train()
for step in trainer.state.log_history[:-1]:
    print(f"loss {step['loss']:.7f} grad_norm {step['grad_norm']:.7f}", flush=True)
