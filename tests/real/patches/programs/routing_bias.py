"""Trains a small DeepSeek-V3 of transformers that was loaded from its own checkpoint; writes biases and losses."""

import dsfix  # noqa: F401 isort: skip
import json
import sys
from pathlib import Path

from dsfix.lab import Lab

BIAS = "e_score_correction_bias"
STEPS = 2
out, stage, section = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]

lab = Lab()
torch = lab.torch
_ = lab.deepspeed

from transformers import DeepseekV3Config, DeepseekV3ForCausalLM  # noqa: E402
from transformers.integrations import HfDeepSpeedConfig  # noqa: E402


def biases(model):
    return [module._buffers[BIAS] for module in model.modules() if BIAS in module._buffers]


def saved(directory):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "moe_intermediate_size": 16, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 16, "kv_lora_rank": 16}
    widths = {"qk_rope_head_dim": 8, "v_head_dim": 8, "qk_nope_head_dim": 8, "max_position_embeddings": 64}
    experts = {"n_routed_experts": 8, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2}
    model = DeepseekV3ForCausalLM(
        DeepseekV3Config(vocab_size=64, first_k_dense_replace=0, **sizes, **heads, **widths, **experts)
    )
    for bias in biases(model):
        bias.copy_(8 + 0.004 * torch.arange(len(bias)))  # closer than bf16 and fp16 can distinguish
    model.save_pretrained(directory)


saved(lab.tmp / "model")
config = {
    "train_micro_batch_size_per_gpu": 1,
    section: {"enabled": True},
    "zero_optimization": {"stage": stage},
    "zero_allow_untested_optimizer": True,
    "optimizer": {"type": "SGD", "params": {"lr": 0.01}},
}
kept = HfDeepSpeedConfig(config) if stage == 3 else None  # transformers then loads under zero.Init
dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[section]
# grouped kernels have no counterpart on the emulated device
model = DeepseekV3ForCausalLM.from_pretrained(lab.tmp / "model", dtype=dtype, experts_implementation="eager")
engine = lab.initialize(model, config, model_parameters=model.parameters())
tokens = torch.randint(0, 64, (1, 16), device=lab.device)
losses = []
for _step in range(STEPS):
    loss = engine(input_ids=tokens, labels=tokens).loss
    engine.backward(loss)
    engine.step()
    losses.append(loss.item())
found = biases(engine.module)
written = {
    "partitioned": any(hasattr(parameter, "ds_id") for parameter in engine.module.parameters()),
    "dtypes": sorted({str(each.dtype) for each in found}),
    "distinct": [len(set(each.tolist())) for each in found],
    "experts": len(found[0]),
    "losses": losses,
}
(out / "0.json").write_text(json.dumps(written))
lab.close()
