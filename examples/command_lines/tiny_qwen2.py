"""Writes the input of the fine-tuning commands: a tiny Qwen2 created from a config, its tokenizer, 24 conversations.

python tiny_qwen2.py    # model/ and data/ in the current directory; nothing is downloaded
"""

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

# one token per byte
vocabulary = {token: number for number, token in enumerate([*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.add_special_tokens(SPECIAL)
tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<|endoftext|>", eos_token="<|im_end|>")
tokenizer.save_pretrained("model")

torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
model = Qwen2ForCausalLM(Qwen2Config(vocab_size=len(vocabulary), num_key_value_heads=2, **sizes))
model.save_pretrained("model")

texts = ["".join(chr(ord("a") + letter) for letter in row) for row in torch.randint(26, (24, 12)).tolist()]
data = Path("data")
data.mkdir(exist_ok=True)
rows = [{"instruction": text[:4], "input": "", "output": text[4:]} for text in texts]
data.joinpath("letters.json").write_text(json.dumps(rows), encoding="utf-8")
data.joinpath("dataset_info.json").write_text(json.dumps({"letters": {"file_name": "letters.json"}}), encoding="utf-8")
