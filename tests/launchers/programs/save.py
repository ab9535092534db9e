"""Trains one step on one rank and saves a checkpoint: `save.py DIRECTORY`; also the weight alone."""

import os
import sys

os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[2])

import deepspeed
import torch

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
deepspeed.init_distributed("gloo", verbose=False)
torch.manual_seed(0)
model = torch.nn.Linear(32, 8, bias=False)
model.register_buffer("scale", torch.arange(3.0, dtype=torch.float64))
config = {
    "train_micro_batch_size_per_gpu": 2,
    "optimizer": {"type": "AdamW", "params": {"torch_adam": True, "lr": 0.01}},
    "zero_optimization": {"stage": 1, "reduce_bucket_size": 1000, "allgather_bucket_size": 1000},
}
engine = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]
engine.backward(engine(torch.ones(2, 32)).sum())
engine.step()
engine.save_checkpoint(sys.argv[1], tag="saved", client_state={"universal_checkpoint_info": {}})
torch.save(model.weight.detach().clone(), os.path.join(sys.argv[1], "weight.pt"))
