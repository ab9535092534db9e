"""Train a small Llama on the bytes of a text file: ZeRO-3, optimizer offloaded to the CPU, gradient clipping."""

import argparse
from pathlib import Path

import deepspeed
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

parser = argparse.ArgumentParser()
parser.add_argument("--text", type=Path, required=True)
parser.add_argument("--model", type=Path, required=True)
parser.add_argument("--deepspeed_config", required=True)
parser.add_argument("--steps", type=int, default=30)
args = parser.parse_args()

torch.manual_seed(0)
config = LlamaConfig.from_json_file(args.model)
model = AutoModelForCausalLM.from_config(config)
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=args.deepspeed_config)
print(f"deepspeed {deepspeed.__version__} trains on {engine.device}", flush=True)

text = torch.frombuffer(bytearray(args.text.read_bytes()), dtype=torch.uint8).long()
length = config.max_position_embeddings
for step in range(1, args.steps + 1):
    starts = torch.randint(len(text) - length, (engine.train_micro_batch_size_per_gpu(),))
    batch = torch.stack([text[start : start + length] for start in starts]).to(engine.device)
    loss = engine(input_ids=batch, labels=batch).loss
    engine.backward(loss)
    engine.step()
    print(f"step {step} loss {loss.item():.9g}", flush=True)

torch.distributed.destroy_process_group()
