"""Run in an empty directory: creates tiny models of the same kind and under the same names as those on the hub.

transformers prefers a directory of that name in the current one to the hub.
"""

from __future__ import annotations

import importlib
from typing import Any

_GPT2 = ("gpt2", "sshleifer/tiny-gpt2", "hf-internal-testing/tiny-random-gpt2")
_LLAMA = "hf-internal-testing/tiny-random-LlamaForCausalLM"
_HEADS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4}
_EXPERTS = {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "num_experts": 4}


def make() -> None:
    transformers: Any = importlib.import_module("transformers")
    importlib.import_module("torch").manual_seed(0)
    for name in _GPT2:
        # the tests draw token ids below 1000
        config = transformers.GPT2Config(n_embd=32, n_head=2, n_layer=2, vocab_size=1000, n_positions=64)
        transformers.GPT2LMHeadModel(config).save_pretrained(name)
    config = transformers.LlamaConfig(**_HEADS, intermediate_size=64, vocab_size=1000)
    transformers.LlamaForCausalLM(config).save_pretrained(_LLAMA)
    _tokenizer(transformers).save_pretrained(_LLAMA)
    config = transformers.Qwen2MoeConfig(**_HEADS, **_EXPERTS, intermediate_size=32, vocab_size=200)
    transformers.Qwen2MoeForCausalLM(config).save_pretrained("peft-internal-testing/tiny-random-qwen-1.5-MoE")
    transformers.MobileViTConfig(hidden_sizes=[16, 24, 32]).save_pretrained("apple/mobilevit-xx-small")


def _tokenizer(transformers: Any) -> Any:
    tokenizers: Any = importlib.import_module("tokenizers")
    words = tokenizers.models.WordLevel({"<unk>": 0, "</s>": 1}, unk_token="<unk>")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(words), unk_token="<unk>", eos_token="</s>"
    )


if __name__ == "__main__":
    make()
