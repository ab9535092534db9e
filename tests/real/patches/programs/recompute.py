"""Trains with LoRA under ZeRO-3, with and without non-reentrant checkpointing; writes what this rank saw to JSON."""

import dsfix  # noqa: F401 isort: skip
import itertools
import json
import os
import sys
from pathlib import Path

from dsfix.lab import Lab

lab = Lab()
torch = lab.torch
deepspeed = lab.deepspeed

from torch import nn  # noqa: E402

from dsfix.lab.models import Transformer, token_batch  # noqa: E402

STEPS = 2
ACCUMULATION = 2


class LoRA(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base
        self.lora_a = nn.Linear(base.in_features, 2, bias=False)
        self.lora_b = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.lora_b(self.lora_a(x))


def train(checkpointing, dtype, zero_init):
    """Losses, gradients and parameters, bit by bit."""
    torch.manual_seed(0)
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": ACCUMULATION,
        "train_batch_size": 2 * ACCUMULATION * lab.world_size,
        "optimizer": {"type": "SGD", "params": {"lr": 0.5}},
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    }
    if dtype == "bf16":
        config["bf16"] = {"enabled": True}
    with deepspeed.zero.Init(config_dict_or_path=config, enabled=zero_init):
        model = Transformer(checkpointing=checkpointing)
        for block in model.blocks:
            block.qkv, block.up = LoRA(block.qkv), LoRA(block.up)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora" in name)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    engine = lab.initialize(model, config, model_parameters=trained)
    losses, gradients = [], []
    for micro_step in range(STEPS * ACCUMULATION):
        tokens, targets = token_batch(rank=lab.rank, step=micro_step)
        logits = engine(tokens.to(lab.device)).float()
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.to(lab.device).flatten())
        engine.backward(loss)
        losses.append(loss.item())
        if (micro_step + 1) % ACCUMULATION == 0:
            gradients += [deepspeed.utils.safe_get_full_grad(parameter).tolist() for parameter in trained]
        engine.step()
    parameters = {name: value.tolist() for name, value in lab.parameters(engine).items()}
    engine.destroy()
    return {"losses": losses, "gradients": gradients, "parameters": parameters}


cases = {}
for dtype, zero_init in itertools.product(("fp32", "bf16"), (False, True)):
    name = f"{dtype}{', zero.Init' if zero_init else ''}"
    expected = train(None, dtype, zero_init)
    try:
        seen = train("non-reentrant", dtype, zero_init)
    except RuntimeError as error:
        cases[name] = {"error": f"{type(error).__name__}: {error}"}
        break  # the other ranks are at the same place, but this engine is not to be used any more
    cases[name] = {
        "differ": [what for what in expected if seen[what] != expected[what]],
        "no gradient": sum(not any(map(any, gradient)) for gradient in expected["gradients"]),
        "gradients": len(expected["gradients"]),
        "losses": expected["losses"],
    }
Path(sys.argv[1], f"{lab.rank}.json").write_text(json.dumps(cases), encoding="utf-8")
if any("error" in case for case in cases.values()):
    os._exit(0)  # at times the threads of a backward that died abort the interpreter's end
lab.close()
